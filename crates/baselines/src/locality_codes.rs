//! The locally repairable codes that ECWide chooses among (FAST'21, §3.3, Table 3; Kolosov et al., ATC'18), as generator
//! matrices over GF(2^8).
//!
//! All have n chunks, of which the first k are the data, and a locality of r chunks. Each of l = ⌈k/r⌉ groups of r data
//! chunks has a local parity.
//!
//! | code | global parities g | what repairs a global parity |
//! |--|--|--|
//! | Azure-LRC | n − k − l | k chunks |
//! | Xorbas | n − k − l | the others and the local parities: the sum of all parities is zero |
//! | Optimal-LRC | the rest of n | its group: data and globals together are cut into groups |
//! | Azure-LRC+1 | n − k − l − 1 | the other globals and their local parity |
//!
//! If r divides k, the groups of Optimal-LRC are those of Azure-LRC+1, with other globals.
//!
//! [`LinearCode::tolerated`] finds f by trying every erasure. Costs one rank per set of chunks; meant for some 16
//! chunks.

use striate_codec::gf256;
use striate_codec::lrc::for_each_subset;
use striate_codec::{Code, CodecError};

/// One of the four codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalityCode {
    /// Huang et al., ATC'12: the code of Striate's `lrc` and `wide`.
    AzureLrc,
    /// Sathiamoorthy et al., VLDB'13.
    Xorbas,
    /// Tamo and Barg, 2014, with the groups that ECWide describes.
    OptimalLrc,
    /// Kolosov et al., ATC'18.
    AzureLrcPlus1,
}

/// A linear code as its generator matrix: n rows of k coefficients, of which the first k are the identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearCode {
    rows: Vec<Vec<u8>>,
}

impl LocalityCode {
    /// All codes, in the order of the paper's table.
    pub const ALL: [LocalityCode; 4] = [Self::AzureLrc, Self::Xorbas, Self::OptimalLrc, Self::AzureLrcPlus1];

    /// Builds the code with these parameters. Returns `None` if none exists.
    pub fn build(self, n: usize, k: usize, r: usize) -> Option<LinearCode> {
        let locals = k.div_ceil(r);
        let globals = n.checked_sub(k + locals)?;
        let code = match self {
            Self::AzureLrc => LinearCode::of(&Code::wide(k, r, globals + 1).ok()?),
            Self::Xorbas => {
                // A global parity is read from the other globals and all local parities.
                (globals > 0 && globals - 1 + locals <= r).then(|| xorbas(k, r, globals))?.ok()?
            }
            Self::OptimalLrc => {
                let globals = (1..=globals).find(|globals| k + globals + (k + globals).div_ceil(r) == n)?;
                optimal_lrc(k, r, globals).ok()?
            }
            Self::AzureLrcPlus1 => {
                let globals = globals.checked_sub(1).filter(|globals| (1..=r).contains(globals))?;
                azure_lrc_plus_1(k, r, globals).ok()?
            }
        };
        Some(code)
    }
}

/// The global parities are those of an MDS code whose rows add up to ones, after scaling its columns. So all parities
/// add up to zero, which is the local parity of the globals that is never stored.
fn xorbas(k: usize, r: usize, globals: usize) -> Result<LinearCode, CodecError> {
    let mut rows = mds_rows(k, globals)?;
    for column in 0..k {
        let sum = rows.iter().fold(0, |sum, row| sum ^ row[column]);
        if sum == 0 {
            let reason = format!("the global parities of data chunk {column} add up to zero");
            return Err(CodecError::Parameters { code: format!("Xorbas with k = {k}"), reason });
        }
        rows.iter_mut().for_each(|row| row[column] = gf256::div(row[column], sum));
    }
    let mut code = LinearCode::identity(k);
    let groups: Vec<usize> = (0..k).collect();
    groups.chunks(r).for_each(|group| code.push_sum(group));
    code.rows.append(&mut rows);
    Ok(code)
}

/// Cuts data and globals into groups of r, each with its sum.
fn optimal_lrc(k: usize, r: usize, globals: usize) -> Result<LinearCode, CodecError> {
    let mut code = LinearCode::identity(k);
    code.rows.extend(mds_rows(k, globals + 1)?.into_iter().skip(1));
    let members: Vec<usize> = (0..k + globals).collect();
    members.chunks(r).for_each(|group| code.push_sum(group));
    Ok(code)
}

/// Azure-LRC with the sum of its globals.
fn azure_lrc_plus_1(k: usize, r: usize, globals: usize) -> Result<LinearCode, CodecError> {
    let azure = Code::wide(k, r, globals + 1)?;
    let mut code = LinearCode::of(&azure);
    code.push_sum(&(azure.n() - globals..azure.n()).collect::<Vec<_>>());
    Ok(code)
}

/// The parity rows of Reed–Solomon, the first of which are ones.
fn mds_rows(k: usize, parities: usize) -> Result<Vec<Vec<u8>>, CodecError> {
    let code = Code::rs(k, parities)?;
    Ok((k..code.n()).map(|parity| code.row(parity)).collect())
}

impl LinearCode {
    fn of(code: &Code) -> LinearCode {
        LinearCode { rows: (0..code.n()).map(|chunk| code.row(chunk)).collect() }
    }

    fn identity(k: usize) -> LinearCode {
        let row = |chunk: usize| (0..k).map(|column| u8::from(chunk == column)).collect();
        LinearCode { rows: (0..k).map(row).collect() }
    }

    /// Appends a chunk that is the sum of others.
    fn push_sum(&mut self, chunks: &[usize]) {
        let mut sum = vec![0; self.k()];
        for &chunk in chunks {
            gf256::accumulate_reference(1, &self.rows[chunk], &mut sum);
        }
        self.rows.push(sum);
    }

    /// Number of chunks per stripe.
    pub fn n(&self) -> usize {
        self.rows.len()
    }

    /// Number of data chunks per stripe.
    pub fn k(&self) -> usize {
        self.rows[0].len()
    }

    /// f: the maximum number of arbitrary chunks that may be lost, by trying all erasures.
    pub fn tolerated(&self) -> usize {
        let tolerates = |losses: usize| {
            let mut all = true;
            for_each_subset(self.n(), self.n() - losses, &mut |left| {
                all = all && self.rank(left) == self.k()
            });
            all
        };
        (1..=self.n()).take_while(|&losses| tolerates(losses)).count()
    }

    /// The minimum number of other chunks that determine this one, by trying all sets of up to k.
    pub fn locality(&self, chunk: usize) -> usize {
        let others: Vec<usize> = (0..self.n()).filter(|&other| other != chunk).collect();
        let is_determined_by = |size: usize| {
            let mut any = false;
            for_each_subset(others.len(), size, &mut |places| {
                let mut chunks: Vec<usize> = places.iter().map(|&place| others[place]).collect();
                any = any || {
                    let rank = self.rank(&chunks);
                    chunks.push(chunk);
                    self.rank(&chunks) == rank
                };
            });
            any
        };
        (1..=self.k()).find(|&size| is_determined_by(size)).unwrap_or(self.k())
    }

    /// The rank of these chunks' rows.
    fn rank(&self, chunks: &[usize]) -> usize {
        let mut rows: Vec<Vec<u8>> = chunks.iter().map(|&chunk| self.rows[chunk].clone()).collect();
        let mut rank = 0;
        for column in 0..self.k() {
            let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
            rows.swap(rank, pivot);
            let (done, rest) = rows.split_at_mut(rank + 1);
            for row in rest.iter_mut().filter(|row| row[column] != 0) {
                let factor = gf256::div(row[column], done[rank][column]);
                gf256::accumulate_reference(factor, &done[rank], row);
            }
            rank += 1;
        }
        rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecwides_table_3_comes_out_by_trying_every_erasure() {
        let tolerated = LocalityCode::ALL.map(|code| code.build(16, 10, 5).unwrap().tolerated());
        assert_eq!(tolerated, [5, 4, 4, 4], "Azure-LRC, Xorbas, Optimal-LRC, Azure-LRC+1");
    }

    /// Ensures that the table compares the paper's codes.
    #[test]
    fn five_chunks_repair_each_chunk_but_the_globals_of_azure_lrc() {
        for code in LocalityCode::ALL {
            let built = code.build(16, 10, 5).unwrap();
            assert_eq!((built.n(), built.k(), built.rank(&(0..10).collect::<Vec<_>>())), (16, 10, 10));
            let localities: Vec<usize> = (0..16).map(|chunk| built.locality(chunk)).collect();
            let globals = if code == LocalityCode::AzureLrc { 12..16 } else { 16..16 };
            for (chunk, &locality) in localities.iter().enumerate() {
                let is_local = locality <= 5;
                assert_eq!(is_local, !globals.contains(&chunk), "{code:?}: {localities:?}");
            }
        }
    }

    #[test]
    fn the_sum_of_xorbas_parities_is_zero() {
        let code = LocalityCode::Xorbas.build(16, 10, 5).unwrap();
        let mut sum = vec![0; 10];
        code.rows[10..].iter().for_each(|row| gf256::accumulate_reference(1, row, &mut sum));
        assert_eq!(sum, [0; 10]);
    }

    #[test]
    fn parameters_without_a_code_have_none() {
        assert_eq!(
            LocalityCode::OptimalLrc.build(19, 10, 5),
            None,
            "five globals make 18 chunks, six make 20"
        );
        assert_eq!(LocalityCode::AzureLrcPlus1.build(13, 10, 5), None, "no global parity is left");
        assert_eq!(
            LocalityCode::Xorbas.build(20, 10, 5),
            None,
            "seven others and two local parities are more than five"
        );
        assert_eq!(LocalityCode::AzureLrc.build(11, 10, 5), None);
    }
}
