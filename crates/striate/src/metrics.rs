//! Metrics in Prometheus' text format, kept in atomics and formatted on request.
//!
//! Requests are counted by operation and status class, their durations in a histogram per operation. The number of
//! series is bounded: operations are the gateway's fixed set of names.

mod cache;
mod movement;
mod reads;
mod work;

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use striate_commands::admin::messages::{MirrorState, SiteState, Status};
use striate_control::SiteLoadView;
use striate_control::movement::{OptimiserProgress, RebalanceProgress};
use striate_s3::RequestMetrics;
use striate_stripe::{BudgetView, CoAccessTotals, HistogramView, PushView, ReadMeasures};

/// Upper bounds of the duration histogram's buckets, in seconds.
const BUCKETS_S: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

#[derive(Default)]
struct Operation {
    /// Requests by status class, 1xx to 5xx.
    by_class: [AtomicU64; 5],
    /// Requests by duration: one bucket more than [`BUCKETS_S`].
    by_duration: [AtomicU64; BUCKETS_S.len() + 1],
    duration_us: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// Counters of the S3 endpoint.
#[derive(Default)]
pub struct Metrics {
    operations: RwLock<BTreeMap<&'static str, Operation>>,
    refused: RwLock<BTreeMap<&'static str, AtomicU64>>,
    cut: RwLock<BTreeMap<&'static str, AtomicU64>>,
    connections: AtomicI64,
}

impl RequestMetrics for Metrics {
    fn request(
        &self,
        operation: &'static str,
        status: u16,
        bytes_in: u64,
        bytes_out: u64,
        duration: Duration,
    ) {
        if let Some(counters) = self.operations.read().get(operation) {
            return counters.count(status, bytes_in, bytes_out, duration);
        }
        self.operations.write().entry(operation).or_default().count(status, bytes_in, bytes_out, duration);
    }

    fn connection(&self, opened: bool) {
        self.connections.fetch_add(if opened { 1 } else { -1 }, Ordering::Relaxed);
    }

    fn refused(&self, reason: &'static str) {
        self.refused.write().entry(reason).or_default().fetch_add(1, Ordering::Relaxed);
    }

    fn cut(&self, reason: &'static str) {
        self.cut.write().entry(reason).or_default().fetch_add(1, Ordering::Relaxed);
    }
}

impl Operation {
    fn count(&self, status: u16, bytes_in: u64, bytes_out: u64, duration: Duration) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.by_class[class].fetch_add(1, Ordering::Relaxed);
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS_S.iter().position(|&bound| seconds <= bound).unwrap_or(BUCKETS_S.len());
        self.by_duration[bucket].fetch_add(1, Ordering::Relaxed);
        self.duration_us.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
    }

    fn durations(&self) -> HistogramView {
        HistogramView {
            bounds: &BUCKETS_S,
            counts: self.by_duration.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.duration_us.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }
}

/// Figures that other parts of the process keep.
pub struct Figures<'a> {
    /// Durations and counts of reads.
    pub reads: &'a ReadMeasures,
    /// Load reports that sites push.
    pub pushes: PushView,
    /// Memory for bodies.
    pub memory: BudgetView,
    /// Co-access statistics.
    pub co_access: CoAccessTotals,
    /// Load of the sites.
    pub loads: Vec<SiteLoadView>,
    /// Chunks moved to balance space.
    pub rebalance: RebalanceProgress,
    /// Chunks moved to speed up reads.
    pub optimiser: OptimiserProgress,
}

/// The text under construction.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<_> =
            labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escape(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.0, "{name}{labels} {value}").expect("writing to a string");
    }

    /// Writes gauges without labels: rows of name, help text and value.
    fn gauges<V: Display>(&mut self, rows: &[(&str, &str, V)]) {
        self.figures("gauge", rows);
    }

    /// Writes counters without labels: rows of name, help text and value.
    fn counters<V: Display>(&mut self, rows: &[(&str, &str, V)]) {
        self.figures("counter", rows);
    }

    fn figures<V: Display>(&mut self, kind: &str, rows: &[(&str, &str, V)]) {
        for (name, help, value) in rows {
            self.head(name, kind, help);
            self.value(name, &[], value);
        }
    }

    /// Writes a histogram with at most one label.
    fn histogram(&mut self, name: &str, label: Option<(&str, &str)>, view: &HistogramView) {
        let mut below = 0;
        for (index, count) in view.counts.iter().enumerate() {
            below += count;
            let bound = view.bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
            let labels: Vec<_> = label.into_iter().chain([("le", bound.as_str())]).collect();
            self.value(&format!("{name}_bucket"), &labels, below);
        }
        let labels: Vec<_> = label.into_iter().collect();
        self.value(&format!("{name}_sum"), &labels, view.sum);
        self.value(&format!("{name}_count"), &labels, below);
    }
}

/// Escapes a label's value for the text format.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Metrics {
    /// Formats all metrics of the S3 endpoint, of reads and of the store.
    pub fn render(&self, status: &Status, figures: Figures<'_>) -> String {
        let mut page = Page(String::new());
        self.render_requests(&mut page);
        reads::render_reads(&mut page, figures.reads);
        reads::render_pushes(&mut page, figures.pushes);
        reads::render_memory(&mut page, figures.memory);
        reads::render_statistics(&mut page, figures.co_access, &figures.loads);
        movement::render(&mut page, &figures.rebalance, &figures.optimiser);
        render_store(&mut page, status);
        work::render_work(&mut page, status.repair.as_ref(), status.scrub.as_ref());
        work::render_packing(&mut page, status.packing.as_ref());
        work::render_copies(&mut page, status.copies.as_ref());
        cache::render_cache(&mut page, status.cache.as_ref());
        cache::render_origins(&mut page, status.origins.as_ref());
        page.0
    }

    fn render_requests(&self, page: &mut Page) {
        let operations = self.operations.read();
        render_operations(page, &operations);
        page.gauges(&[(
            "striate_s3_connections",
            "Open connections.",
            self.connections.load(Ordering::Relaxed),
        )]);
        let refused = "Connections and requests refused by a limit.";
        render_reasons(page, "striate_s3_refused_total", refused, &self.refused.read());
        let cut = "Connections cut because their client was too slow or idle, by reason.";
        render_reasons(page, "striate_s3_cut_total", cut, &self.cut.read());
    }
}

/// Writes the requests of each operation: their statuses, durations and bytes.
fn render_operations(page: &mut Page, operations: &BTreeMap<&'static str, Operation>) {
    page.head("striate_s3_requests_total", "counter", "S3 requests that ended, by class of status.");
    for (operation, counters) in operations {
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(&counters.by_class) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let labels = [("operation", *operation), ("class", *class)];
                page.value("striate_s3_requests_total", &labels, count);
            }
        }
    }
    let durations = "striate_s3_request_seconds";
    page.head(durations, "histogram", "From a request's arrival to its answer's end.");
    for (operation, counters) in operations {
        page.histogram(durations, Some(("operation", *operation)), &counters.durations());
    }
    type Bytes = fn(&Operation) -> &AtomicU64;
    let bytes: [(&str, &str, Bytes); 2] = [
        ("striate_s3_received_bytes_total", "Bytes of request bodies.", |operation| &operation.bytes_in),
        ("striate_s3_sent_bytes_total", "Bytes of answer bodies.", |operation| &operation.bytes_out),
    ];
    for (name, help, bytes) in bytes {
        page.head(name, "counter", help);
        for (operation, counters) in operations {
            page.value(name, &[("operation", operation)], bytes(counters).load(Ordering::Relaxed));
        }
    }
}

/// Writes a counter that is kept by reason.
fn render_reasons(page: &mut Page, name: &str, help: &str, counts: &BTreeMap<&'static str, AtomicU64>) {
    page.head(name, "counter", help);
    for (reason, count) in counts {
        page.value(name, &[("reason", reason)], count.load(Ordering::Relaxed));
    }
}

/// Writes the figures of the whole store, of its sites and of its mirrors.
fn render_store(page: &mut Page, status: &Status) {
    page.head("striate_info", "gauge", "The program's version and its cluster.");
    let cluster = status.cluster.to_string();
    page.value("striate_info", &[("version", status.version.as_str()), ("cluster", cluster.as_str())], 1);
    let capacity = &status.capacity;
    page.gauges(&[
        ("striate_uptime_seconds", "Time since the start.", status.uptime_s),
        (
            "striate_debt_stripes",
            "Stripes with missing chunks, which repair restores (debt).",
            status.debt_stripes,
        ),
        (
            "striate_warnings",
            "Warnings that need an operator's attention, as `striate status` lists them.",
            status.warnings.len() as u64,
        ),
        ("striate_capacity_bytes", "Size of all file systems, each counted once.", capacity.total_bytes),
        ("striate_free_bytes", "Bytes that can still be written.", capacity.free_bytes),
        ("striate_payload_bytes", "Bytes of chunks stored.", capacity.payload_bytes),
        ("striate_disk_bytes", "Bytes that chunks take on the disks.", capacity.disk_bytes),
        ("striate_chunks", "Chunks stored.", capacity.chunks),
    ]);
    render_sites(page, &status.sites);
    render_mirrors(page, &status.mirrors);
}

/// Reads a figure of a site.
type OfSite = fn(&SiteState) -> u64;

/// Gauges of a site: name, help text and value.
const SITE_GAUGES: [(&str, &str, OfSite); 9] = [
    ("striate_site_up", "1 when the site takes reads and writes.", |site| (site.state == "ok").into()),
    ("striate_site_queue_requests", "Requests that the site serves or has queued.", |site| {
        site.load.queue_requests.into()
    }),
    ("striate_site_queue_bytes", "Bytes that the site's queued and served requests ask for.", |site| {
        site.load.queue_bytes
    }),
    ("striate_site_io_permille", "Share of the workers' time that operations on the disk took.", |site| {
        site.load.io_permille.into()
    }),
    ("striate_site_cpu_permille", "Share of the processor in use.", |site| site.load.cpu_permille.into()),
    ("striate_site_chunks", "Chunks on the site.", |site| site.capacity.chunks),
    ("striate_site_payload_bytes", "Bytes of chunks on the site.", |site| site.capacity.payload_bytes),
    ("striate_site_disk_bytes", "Bytes that the site's chunks take.", |site| site.capacity.disk_bytes),
    ("striate_site_free_bytes", "Bytes the site can still take.", |site| site.capacity.free_bytes),
];

fn render_sites(page: &mut Page, sites: &[SiteState]) {
    for (name, help, value) in SITE_GAUGES {
        page.head(name, "gauge", help);
        for site in sites {
            let number = site.site.to_string();
            page.value(name, &[("site", number.as_str()), ("rack", site.rack.as_str())], value(site));
        }
    }
}

/// Reads a figure of a metadata mirror.
type OfMirror = fn(&MirrorState) -> u64;

/// Gauges of a metadata mirror: name, help text and value.
const MIRROR_GAUGES: [(&str, &str, OfMirror); 2] = [
    ("striate_mirror_in_sync", "1 when the metadata mirror holds everything acknowledged.", |mirror| {
        mirror.in_sync.into()
    }),
    ("striate_mirror_bytes", "Bytes of the metadata mirror.", |mirror| mirror.bytes),
];

fn render_mirrors(page: &mut Page, mirrors: &[MirrorState]) {
    for (name, help, value) in MIRROR_GAUGES {
        page.head(name, "gauge", help);
        for mirror in mirrors {
            let directory = mirror.directory.display().to_string();
            page.value(name, &[("directory", directory.as_str())], value(mirror));
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_core::{ClusterId, Profile};

    use super::*;
    use striate_commands::admin::messages::{
        CacheState, CopiesState, MemorySiteState, OriginState, PackingState, RepairState, ScrubState,
        ServedState,
    };

    #[test]
    fn every_line_is_prometheus_text_and_histograms_add_up() {
        let metrics = Metrics::default();
        metrics.request("GetObject", 200, 1, 2, Duration::from_millis(3));
        metrics.request("GetObject", 503, 1, 2, Duration::from_secs(3_600));
        metrics.connection(true);
        metrics.refused("headers");
        let status = Status {
            formats: None,
            placement: None,
            version: "1".to_owned(),
            cluster: ClusterId(1),
            uptime_s: 1,
            endpoint: String::new(),
            profile: Profile::for_directories(6),
            sites: Vec::new(),
            mirrors: Vec::new(),
            debt_stripes: 7,
            repair: Some(RepairState { stripes_left: 5, ..RepairState::default() }),
            movement: None,
            scrub: Some(ScrubState::default()),
            packing: Some(PackingState { unreadable_groups: 2, ..PackingState::default() }),
            sealed: None,
            copies: Some(CopiesState { copies: 3, ..CopiesState::default() }),
            cache: Some(CacheState {
                sites: vec![MemorySiteState {
                    site: Some(7),
                    state: "ok".to_owned(),
                    other_bytes: 11,
                    deleted: 12,
                    blocks_by_parities: vec![0, 13],
                    ..MemorySiteState::default()
                }],
                reads: vec![ServedState { how: "hit".to_owned(), reads: 4, bytes: 8 }],
                overwritten: 14,
                ..CacheState::default()
            }),
            origins: Some(OriginState { bytes: 5, cached_writes: 6, ..OriginState::default() }),
            losses: None,
            notes: Vec::new(),
            warnings: Vec::new(),
            capacity: Default::default(),
        };
        let reads = ReadMeasures::default();
        let figures = Figures {
            reads: &reads,
            pushes: PushView { received: 9, sites: 4 },
            memory: BudgetView { total: 64, taken: 3, waited: 7, ..BudgetView::default() },
            co_access: CoAccessTotals::default(),
            loads: Vec::new(),
            rebalance: RebalanceProgress { chunks: 5, ..RebalanceProgress::default() },
            optimiser: OptimiserProgress::default(),
        };
        let text = metrics.render(&status, figures);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("striate_") && value.parse::<f64>().is_ok(), "{line}");
        }
        assert_help_stands_alone(&text);
        assert!(text.contains("striate_s3_requests_total{operation=\"GetObject\",class=\"5xx\"} 1"));
        assert!(text.contains("striate_s3_request_seconds_bucket{operation=\"GetObject\",le=\"0.005\"} 1"));
        assert!(text.contains("striate_s3_request_seconds_bucket{operation=\"GetObject\",le=\"+Inf\"} 2"));
        assert!(text.contains("striate_debt_stripes 7"));
        assert!(text.contains("striate_repair_stripes_left 5") && text.contains("striate_scrub_cycle 0"));
        assert!(
            text.contains("striate_packing_unreadable_groups 2")
                && text.contains("striate_packed_groups 0")
                && text.contains("striate_hot_copies 3")
        );
        assert!(text.contains("striate_moved_chunks_total{why=\"space\"} 5"));
        assert!(text.contains("striate_read_phase_seconds_count"));
        assert!(text.contains("striate_cache_read_bytes_total{served=\"hit\"} 8"));
        assert!(text.contains("striate_origin_bytes_total 5"));
        assert!(text.contains("striate_origin_cached_writes_total 6"));
        assert!(text.contains("striate_origins_failing 0"));
        assert!(text.contains("striate_memory_site_up{site=\"7\",rack=\"\"} 1"));
        assert!(text.contains("striate_memory_site_other_bytes{site=\"7\",rack=\"\"} 11"));
        assert!(text.contains("striate_memory_site_deleted_total{site=\"7\",rack=\"\"} 12"));
        assert!(text.contains("striate_memory_site_blocks{site=\"7\",rack=\"\",parities=\"1\"} 13"));
        assert!(text.contains("striate_cache_invalidated_total{cause=\"overwritten\"} 14"));
        assert!(text.contains("striate_queue_pushes_total 9") && text.contains("striate_watched_sites 4"));
    }

    /// Prometheus shows each help text alone, so it must not refer to another metric.
    fn assert_help_stands_alone(text: &str) {
        let help = |line| str::strip_prefix(line, "# HELP ").and_then(|rest| Some(rest.split_once(' ')?.1));
        let mut helps: Vec<&str> = text.lines().filter_map(help).collect();
        for help in &helps {
            let refers_back =
                ["Their", "Of these", "Bytes of these"].iter().any(|words| help.starts_with(words));
            assert!(!refers_back, "{help:?} refers to another metric");
        }
        let count = helps.len();
        helps.sort_unstable();
        helps.dedup();
        assert_eq!(helps.len(), count, "two metrics have one help text");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\n"), "a\\\"b\\\\c\\n");
    }
}
