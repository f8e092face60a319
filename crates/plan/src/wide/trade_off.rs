//! Redundancy against repair traffic: the costs of four kinds of codes with the same k and f (ECWide §3.5, Table 4,
//! Fig. 3).

use striate_codec::CodeSpec;

use crate::wide::fitting::RackUse;
use crate::wide::geometry::{WideError, WideGeometry};

/// A code and the layout of its chunks in racks, as compared in §3.5 and §3.6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// (k + f, k) RS with each chunk in a rack of its own.
    Rs {
        /// k.
        data: usize,
        /// f.
        tolerance: usize,
    },
    /// (n, k, r) Azure-LRC with each chunk in a rack of its own.
    Lrc {
        /// k.
        data: usize,
        /// r.
        locality: usize,
        /// f.
        tolerance: usize,
    },
    /// (k + f, k, z) TL: RS with f chunks per rack; a rack adds up its chunks before it sends them.
    Topology {
        /// k.
        data: usize,
        /// f.
        tolerance: usize,
    },
    /// (n, k, r, z) CL.
    Combined(WideGeometry),
}

impl Scheme {
    /// Returns n.
    pub fn chunks(&self) -> usize {
        match self {
            Self::Rs { data, tolerance } | Self::Topology { data, tolerance } => data + tolerance,
            Self::Lrc { data, locality, tolerance } => data + data.div_ceil(*locality) + tolerance - 1,
            Self::Combined(geometry) => geometry.n(),
        }
    }

    /// Returns k.
    pub fn data(&self) -> usize {
        match self {
            Self::Rs { data, .. } | Self::Lrc { data, .. } | Self::Topology { data, .. } => *data,
            Self::Combined(geometry) => geometry.k(),
        }
    }

    /// Returns f.
    pub fn tolerance(&self) -> usize {
        match self {
            Self::Rs { tolerance, .. } | Self::Lrc { tolerance, .. } | Self::Topology { tolerance, .. } => {
                *tolerance
            }
            Self::Combined(geometry) => geometry.f(),
        }
    }

    /// Returns the maximum number of chunks in a rack.
    pub fn rack_limit(&self) -> usize {
        match self {
            Self::Rs { .. } | Self::Lrc { .. } => 1,
            Self::Topology { tolerance, .. } => *tolerance,
            Self::Combined(geometry) => geometry.c(),
        }
    }

    /// Returns the number of racks of a stripe.
    pub fn racks(&self) -> usize {
        match self {
            Self::Combined(geometry) => geometry.z(),
            _ => self.chunks().div_ceil(self.rack_limit()),
        }
    }

    /// Returns the number of racks that a cluster must have: those of a stripe, and one to rebuild a lost rack in.
    pub fn racks_needed(&self) -> usize {
        self.racks() + 1
    }

    /// Returns the number of sites that each rack must have: one per chunk, and one to rebuild a lost chunk on.
    pub fn sites_per_rack_needed(&self) -> usize {
        self.rack_limit() + 1
    }

    /// Returns what a cluster of this many racks with this many sites each lacks, as arithmetic; `None` if stripes fit.
    pub fn lacking(&self, racks: usize, sites_per_rack: usize) -> Option<String> {
        let (chunks, racks_used) = (self.chunks(), self.racks());
        let use_of_racks =
            RackUse { chunks, racks: racks_used, rack_limit: self.rack_limit(), has_spare: true };
        use_of_racks.lacking(racks, sites_per_rack)
    }

    /// Returns n / k.
    pub fn redundancy(&self) -> f64 {
        self.chunks() as f64 / self.data() as f64
    }

    /// Returns the maximum number of chunks sent across racks to repair a data chunk (Table 4).
    pub fn repair_chunks(&self) -> usize {
        match self {
            Self::Rs { data, .. } => *data,
            Self::Lrc { data, locality, .. } => *locality.min(data),
            Self::Topology { .. } => self.racks() - 1,
            Self::Combined(geometry) => geometry.repair_chunks(),
        }
    }

    /// Returns C, the mean over all chunks of a stripe (§3.6). A global parity of an LRC is repaired from the k data
    /// chunks.
    pub fn mean_repair_chunks(&self) -> f64 {
        match self {
            Self::Rs { .. } | Self::Topology { .. } => self.repair_chunks() as f64,
            Self::Lrc { data, tolerance, .. } => {
                let of_groups: usize = self.local_groups().into_iter().map(|size| size * (size - 1)).sum();
                (of_groups + (tolerance - 1) * data) as f64 / self.chunks() as f64
            }
            Self::Combined(geometry) => geometry.mean_repair_chunks(),
        }
    }

    /// Returns the number of chunks of each local group, parity included; empty for RS.
    pub fn local_groups(&self) -> Vec<usize> {
        let (data, locality) = match self {
            Self::Rs { .. } | Self::Topology { .. } => return Vec::new(),
            Self::Lrc { data, locality, .. } => (*data, *locality),
            Self::Combined(geometry) => (geometry.k(), geometry.r()),
        };
        (0..data.div_ceil(locality)).map(|group| locality.min(data - group * locality) + 1).collect()
    }

    /// Returns the code as named in profiles.
    pub fn code(&self) -> CodeSpec {
        match *self {
            Self::Rs { data, tolerance } | Self::Topology { data, tolerance } => {
                CodeSpec::Rs { data, parity: tolerance }
            }
            Self::Lrc { data, locality, tolerance } => CodeSpec::Wide { data, locality, tolerance },
            Self::Combined(ref geometry) => geometry.spec(),
        }
    }
}

/// Returns the points of Fig. 3 for one f: TL, then the Azure-LRCs and the codes with combined locality whose
/// redundancy is at most γ (`max_redundancy`). For each number of local groups, it is the code with the least r; of two
/// with the same redundancy, the one that sends less.
///
/// # Errors
/// [`WideError`] if k and f are not those of a wide code that this program can build.
pub fn trade_off(data: usize, tolerance: usize, max_redundancy: f64) -> Result<Vec<Scheme>, WideError> {
    let mut points = vec![Scheme::Topology { data, tolerance }];
    let mut combined: Vec<Scheme> = Vec::new();
    for groups in 1..=data / 2 {
        let least = data.div_ceil(groups);
        let redundancy = (data + groups + tolerance - 1) as f64 / data as f64;
        if redundancy > max_redundancy {
            break;
        }
        if data.div_ceil(least) == groups {
            points.push(Scheme::Lrc { data, locality: least, tolerance });
        }
        let point = Scheme::Combined(WideGeometry::new(CodeSpec::wide_within(data, tolerance, redundancy)?)?);
        if combined.last() != Some(&point) {
            combined.push(point);
        }
    }
    points.extend(combined);
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(data: usize, locality: usize, tolerance: usize) -> Scheme {
        Scheme::Combined(WideGeometry::new(CodeSpec::Wide { data, locality, tolerance }).unwrap())
    }

    #[test]
    fn figure_2_comes_out() {
        let lrc = Scheme::Lrc { data: 20, locality: 2, tolerance: 3 };
        let topology = Scheme::Topology { data: 20, tolerance: 3 };
        let combined = combined(20, 5, 3);
        let figures =
            |of: &Scheme| (of.chunks(), of.racks(), of.repair_chunks(), format!("{:.2}", of.redundancy()));
        assert_eq!(figures(&lrc), (32, 32, 2, "1.60".to_owned()));
        assert_eq!(figures(&topology), (23, 8, 7, "1.15".to_owned()));
        assert_eq!(figures(&combined), (26, 9, 1, "1.30".to_owned()));
    }

    #[test]
    fn what_a_cluster_lacks_is_counted_for_every_scheme() {
        let topology = Scheme::Topology { data: 20, tolerance: 3 };
        assert_eq!(topology.lacking(9, 4), None);
        let lacking = topology.lacking(8, 3).unwrap();
        assert!(lacking.contains("8 + 1 = 9 racks") && lacking.contains("3 + 1 = 4 sites"), "{lacking}");
        let lacking = Scheme::Rs { data: 20, tolerance: 3 }.lacking(9, 4).unwrap();
        assert!(lacking.contains("23 chunks fill 23 racks at 1 a rack"), "{lacking}");
    }

    #[test]
    fn mean_repair_traffic_is_that_of_the_reliability_analysis() {
        let means = [
            (Scheme::Rs { data: 12, tolerance: 4 }, 12.0),
            (Scheme::Lrc { data: 12, locality: 6, tolerance: 3 }, 6.75),
            (Scheme::Rs { data: 128, tolerance: 4 }, 128.0),
            (Scheme::Topology { data: 128, tolerance: 4 }, 32.0),
            (Scheme::Lrc { data: 128, locality: 15, tolerance: 4 }, 16.97),
            (combined(128, 27, 4), 6.44),
        ];
        for (scheme, mean) in means {
            assert!(
                (scheme.mean_repair_chunks() - mean).abs() < 0.005,
                "{scheme:?}: {}",
                scheme.mean_repair_chunks()
            );
        }
    }

    #[test]
    fn figure_3_has_the_papers_points_and_combined_locality_below_the_others() {
        for (tolerance, least) in [(2, (130, 64)), (3, (131, 43)), (4, (132, 32))] {
            let points = trade_off(128, tolerance, 1.1).unwrap();
            assert_eq!((points[0].chunks(), points[0].repair_chunks()), least);
            assert!(points.iter().all(|point| point.redundancy() <= 1.1 && point.tolerance() == tolerance));
            // An LRC with no more redundancy than a code with combined locality needs more repair traffic.
            for point in points.iter().filter(|point| matches!(point, Scheme::Combined(_))) {
                let others = points.iter().filter(|other| matches!(other, Scheme::Lrc { .. }));
                for other in others.filter(|other| other.redundancy() <= point.redundancy()) {
                    assert!(other.repair_chunks() > point.repair_chunks(), "{other:?} {point:?}");
                }
            }
        }
        let points = trade_off(128, 4, 1.1).unwrap();
        let of = |n: usize, is_combined: bool| {
            let mut same = points.iter().filter(|point| point.chunks() == n);
            same.find(|point| matches!(point, Scheme::Combined(_)) == is_combined).unwrap().repair_chunks()
        };
        assert_eq!((of(140, false), of(140, true), of(136, true)), (15, 3, 6));
    }
}
