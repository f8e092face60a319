//! Arguments of `striate plan …`.

use clap::{Args, Subcommand};

/// `striate plan …`.
#[derive(Clone, Debug, Subcommand)]
pub enum PlanCommand {
    /// Compare wide codes for a cluster: space, repair traffic, reliability, racks.
    #[command(
        long_about = "Compare wide codes for a cluster: space, repair traffic, reliability, racks.\n\n\
            For K data chunks and F losses it shows Reed-Solomon (rs), an Azure-LRC (lrc), Reed-Solomon over few racks \
            (topology) and the wide code with combined locality (combined) that stores at most REDUNDANCY bytes a byte. Of each: \
            the chunks that cross racks to repair a lost one, at most and on average; the mean time to data loss (ECWide, \
            FAST'21, 3.6); and the racks, and sites in a rack, that it needs: one of each more than a stripe uses, so that what \
            is lost can be rebuilt. If the wide code does not fit, it says why, and which ones do. It asks no server. The exit \
            status is 1 when the wide code does not fit."
    )]
    Wide(WideArgs),
}

/// `striate plan wide`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate plan wide --k 128 --f 4 --redundancy 1.063 --racks 40 --sites-per-rack 8\n  \
        striate plan wide --k 128 --f 4 --racks 13 --sites-per-rack 5      which codes fit?\n  \
        striate plan wide --k 64 --f 4 --racks 24 --sites-per-rack 8 --rack-mttf 10 --json")]
pub struct WideArgs {
    /// Data chunks of a stripe.
    #[arg(long, value_name = "K")]
    pub k: usize,

    /// Losses that a stripe tolerates, and the chunks of it that one rack may hold.
    #[arg(long, value_name = "F")]
    pub f: usize,

    /// Maximum number of bytes stored per byte of data.
    #[arg(long, value_name = "REDUNDANCY", default_value_t = 1.1)]
    pub redundancy: f64,

    /// Racks of the cluster.
    #[arg(long, value_name = "RACKS")]
    pub racks: usize,

    /// Sites in each rack.
    #[arg(long, value_name = "SITES")]
    pub sites_per_rack: usize,

    /// Bandwidth of a site in gigabits a second. Repair uses a tenth of it.
    #[arg(long, value_name = "GBIT", default_value_t = 1.0, value_parser = positive)]
    pub bandwidth: f64,

    /// Capacity of a site, in TiB.
    #[arg(long, value_name = "TIB", default_value_t = 16.0, value_parser = positive)]
    pub capacity: f64,

    /// Mean time to failure of a site, in years.
    #[arg(long, value_name = "YEARS", default_value_t = 4.0, value_parser = positive)]
    pub mttf: f64,

    /// Mean time, in years, until a rack loses all its sites at once. Without it racks do not fail.
    #[arg(long, value_name = "YEARS", value_parser = positive)]
    pub rack_mttf: Option<f64>,

    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(format!("{text:?} is not a number above 0")),
    }
}
