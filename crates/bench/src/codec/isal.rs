//! Intel ISA-L, built from source by the crate `isal-sys` (whose own bindings cover compression only).

use std::ffi::c_int;

// Links the library.
use isal_sys as _;
use striate_codec::Code;

use super::cases::Case;

unsafe extern "C" {
    fn ec_init_tables(k: c_int, rows: c_int, a: *mut u8, gftbls: *mut u8);
    fn ec_encode_data(
        len: c_int,
        k: c_int,
        rows: c_int,
        gftbls: *mut u8,
        data: *mut *mut u8,
        coding: *mut *mut u8,
    );
}

/// ISA-L's expanded tables for one dot product.
pub struct DotProduct {
    tables: Vec<u8>,
    /// Chunks that it reads, ascending.
    pub sources: Vec<usize>,
    /// Chunks that it computes, ascending.
    pub targets: Vec<usize>,
}

impl DotProduct {
    /// Prepares the case's operation with Striate's generator matrix. The coefficients do not affect ISA-L's speed,
    /// and a common matrix makes the results comparable.
    pub fn of(case: &Case) -> DotProduct {
        let code = Code::rs(case.k, case.r).expect("the cases' codes exist");
        let lost = case.lost();
        let (sources, targets, mut matrix) = if lost.is_empty() {
            let matrix: Vec<u8> = (case.k..code.n()).flat_map(|parity| code.row(parity)).collect();
            ((0..case.k).collect(), (case.k..code.n()).collect(), matrix)
        } else {
            let available: Vec<usize> = (0..code.n()).filter(|chunk| !lost.contains(chunk)).collect();
            let plan = code.decode_plan(&available, &lost).expect("at most r chunks are lost");
            let columns = plan.sources().len();
            let matrix = (0..lost.len()).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let matrix = matrix.map(|(row, column)| plan.coefficient(row, column)).collect();
            (plan.sources().to_vec(), lost, matrix)
        };
        let mut tables = vec![0u8; 32 * sources.len() * targets.len()];
        // SAFETY: the matrix has targets × sources bytes and the tables 32 times as many, as the function requires.
        unsafe {
            ec_init_tables(count(&sources), count(&targets), matrix.as_mut_ptr(), tables.as_mut_ptr());
        }
        DotProduct { tables, sources, targets }
    }

    pub fn apply(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        assert_eq!((inputs.len(), outputs.len()), (self.sources.len(), self.targets.len()));
        let len = inputs[0].len();
        assert!(
            inputs.iter().all(|input| input.len() == len) && outputs.iter().all(|output| output.len() == len)
        );
        let mut data: Vec<*mut u8> = inputs.iter().map(|input| input.as_ptr().cast_mut()).collect();
        let mut coding: Vec<*mut u8> = outputs.iter_mut().map(|output| output.as_mut_ptr()).collect();
        let len = c_int::try_from(len).expect("chunks are shorter than 2 GiB");
        // SAFETY: there are as many pointers as the counts say, each valid for `len` bytes. The function reads `data`
        // and writes only `coding`, and the tables were made for these counts.
        unsafe {
            ec_encode_data(
                len,
                count(&self.sources),
                count(&self.targets),
                self.tables.as_mut_ptr(),
                data.as_mut_ptr(),
                coding.as_mut_ptr(),
            );
        }
    }
}

fn count(chunks: &[usize]) -> c_int {
    c_int::try_from(chunks.len()).expect("a stripe has at most 256 chunks")
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::super::memory::Arena;
    use super::*;

    #[test]
    fn isa_l_computes_the_same_bytes_as_striate_in_every_case() {
        let mut arena = Arena::new(64 << 20);
        for case in cases(false) {
            let case = Case { chunk_bytes: 1000, ..case };
            let mut product = DotProduct::of(&case);
            let (sources, targets) = (product.sources.clone(), product.targets.clone());
            let code = Code::rs(case.k, case.r).unwrap();
            let (inputs, _) = arena.next_stripe(&case, &sources, &targets);
            let mut theirs = vec![vec![0u8; case.chunk_bytes]; targets.len()];
            product.apply(&inputs, &mut theirs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            let mut ours = vec![vec![0u8; case.chunk_bytes]; targets.len()];
            let mut outputs: Vec<&mut [u8]> = ours.iter_mut().map(Vec::as_mut_slice).collect();
            match targets[0] {
                first if first >= case.k => code.encode(&inputs, &mut outputs).unwrap(),
                _ => code.decode_plan(&sources, &targets).unwrap().apply(&inputs, &mut outputs).unwrap(),
            }
            assert_eq!(ours, theirs, "{case}");
        }
    }
}
