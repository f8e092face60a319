//! A matrix of coefficients, in the forms that the kernels use.

use crate::gf256;

/// A matrix of coefficients, one row for each output and one column for each input, prepared for the kernels.
#[derive(Clone, PartialEq, Eq)]
pub struct Coefficients {
    rows: usize,
    columns: usize,
    /// Column by column, so that the coefficients of one input lie together.
    bytes: Vec<u8>,
    /// The same coefficients as 8×8 bit matrices ([`bit_matrix`]), in the same order. Empty if no kernel uses them.
    bit_matrices: Vec<u64>,
}

impl std::fmt::Debug for Coefficients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.rows).map(|row| self.row(row))).finish()
    }
}

impl Coefficients {
    /// Builds a matrix from `rows` × `columns` coefficients, row by row.
    ///
    /// # Panics
    /// If the number of coefficients differs.
    pub fn from_rows(rows: usize, columns: usize, values: &[u8]) -> Coefficients {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} × {columns} coefficients");
        let mut bytes = Vec::with_capacity(values.len());
        for column in 0..columns {
            bytes.extend((0..rows).map(|row| values[row * columns + column]));
        }
        let bit_matrices = if cfg!(target_arch = "x86_64") {
            bytes.iter().map(|byte| BIT_MATRICES[usize::from(*byte)]).collect()
        } else {
            Vec::new()
        };
        Coefficients { rows, columns, bytes, bit_matrices }
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The coefficient of input `column` in output `row`.
    ///
    /// # Panics
    /// If one of them is out of range.
    pub fn get(&self, row: usize, column: usize) -> u8 {
        assert!(row < self.rows && column < self.columns);
        self.bytes[column * self.rows + row]
    }

    /// All coefficients, column by column: index = column · rows + row.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All coefficients as bit matrices, in the order of [`Self::bytes`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn bit_matrices(&self) -> &[u64] {
        &self.bit_matrices
    }

    fn row(&self, row: usize) -> Vec<u8> {
        (0..self.columns).map(|column| self.get(row, column)).collect()
    }
}

/// The bit matrices of all 256 coefficients.
static BIT_MATRICES: [u64; 256] = build_bit_matrices();

const fn build_bit_matrices() -> [u64; 256] {
    let mut matrices = [0u64; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        matrices[coefficient] = bit_matrix(coefficient as u8);
        coefficient += 1;
    }
    matrices
}

/// Multiplication by `coefficient` as the 8×8 bit matrix that `gf2p8affineqb` takes. It is linear over the bits of x,
/// whatever the field's polynomial (the instruction's own multiplication is fixed to 0x11B; this field is 0x11D).
/// Output bit i is the parity of x AND byte 7−i of the matrix, so bit j of byte 7−i is bit i of coefficient · 2^j.
const fn bit_matrix(coefficient: u8) -> u64 {
    let mut matrix = 0u64;
    let mut j = 0;
    while j < 8 {
        let product = gf256::mul_const(coefficient, 1 << j);
        let mut i = 0;
        while i < 8 {
            if (product >> i) & 1 == 1 {
                matrix |= 1 << (8 * (7 - i) + j);
            }
            i += 1;
        }
        j += 1;
    }
    matrix
}

/// Products with the low and the high half of a byte, for lookups by byte-shuffle instructions: `NIBBLE_TABLES[c][x]`
/// is c · x and `NIBBLE_TABLES[c][16 + x]` is c · 16x, for x in 0..16.
pub(crate) static NIBBLE_TABLES: [NibbleTable; 256] = build_nibble_tables();

/// 32 bytes, aligned so that one load fills a vector register.
#[repr(align(32))]
#[derive(Clone, Copy)]
pub(crate) struct NibbleTable(pub(crate) [u8; 32]);

const fn build_nibble_tables() -> [NibbleTable; 256] {
    let mut tables = [NibbleTable([0; 32]); 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut x = 0;
        while x < 16 {
            tables[coefficient].0[x] = gf256::mul_const(coefficient as u8, x as u8);
            tables[coefficient].0[16 + x] = gf256::mul_const(coefficient as u8, (x as u8) << 4);
            x += 1;
        }
        coefficient += 1;
    }
    tables
}
