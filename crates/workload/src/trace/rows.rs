//! Parses the rows of a trace.

use std::io::{BufRead, BufReader, Lines, Read};

use csv::StringRecord;

use super::TraceError;

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOp {
    Get,
    Put,
    Delete,
}

/// A row of a trace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub line: u64,
    pub time_s: f64,
    pub op: RowOp,
    pub key: String,
    pub size: Option<u64>,
    /// Empty for a row without a group.
    pub group: String,
}

/// Reads rows. Checks each row on its own, and that times never decrease.
pub(super) struct Rows<R> {
    source: Source<R>,
    columns: Columns,
    last_time_s: f64,
}

/// The non-empty, non-comment lines with their numbers. Each line is parsed on its own, because `csv` would attribute
/// preceding blank lines and comments to a record.
struct Source<R> {
    lines: Lines<BufReader<R>>,
    line: u64,
}

/// Column positions.
#[derive(Clone, Copy, Debug)]
struct Columns {
    count: usize,
    time: usize,
    op: usize,
    key: usize,
    size: usize,
    group: Option<usize>,
}

impl<R: Read> Source<R> {
    /// Returns the next record and its line number.
    fn next(&mut self) -> Result<Option<(u64, StringRecord)>, TraceError> {
        for line in self.lines.by_ref() {
            self.line += 1;
            let wrong = |reason: String| TraceError::line(self.line, reason);
            let line = line.map_err(|error| wrong(error.to_string()))?;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut reader = csv::ReaderBuilder::new()
                .has_headers(false)
                .trim(csv::Trim::All)
                .buffer_capacity(line.len())
                .from_reader(line.as_bytes());
            let mut record = StringRecord::new();
            reader.read_record(&mut record).map_err(|error| wrong(error.to_string()))?;
            return Ok(Some((self.line, record)));
        }
        Ok(None)
    }
}

impl<R: Read> Rows<R> {
    /// Reads the header.
    pub(super) fn new(source: R) -> Result<Self, TraceError> {
        let mut source = Source { lines: BufReader::new(source).lines(), line: 0 };
        let (line, headings) = source.next()?.unwrap_or((1, StringRecord::new()));
        let find = |name: &str| headings.iter().position(|heading| heading.eq_ignore_ascii_case(name));
        let need = |name: &str| {
            find(name).ok_or_else(|| {
                let found = headings.iter().collect::<Vec<_>>().join(",");
                let reason = format!(
                    "the headings {found:?} have no column {name:?}; the first line must be \
                     time_s,op,key,size or time_s,op,key,size,group"
                );
                TraceError::line(line, reason)
            })
        };
        let columns = Columns {
            count: headings.len(),
            time: need("time_s")?,
            op: need("op")?,
            key: need("key")?,
            size: need("size")?,
            group: find("group"),
        };
        Ok(Self { source, columns, last_time_s: f64::NEG_INFINITY })
    }

    fn row(&mut self, line: u64, record: &StringRecord) -> Result<Row, TraceError> {
        let field = |column: usize| record.get(column).unwrap_or("");
        let wrong = |reason: String| TraceError::line(line, reason);
        if record.len() != self.columns.count {
            let (found, expected) = (record.len(), self.columns.count);
            return Err(wrong(format!("it has {found} columns where the headings have {expected}")));
        }
        let time = field(self.columns.time);
        let time_s: f64 = time
            .parse()
            .ok()
            .filter(|time: &f64| time.is_finite())
            .ok_or_else(|| wrong(format!("{time:?} is not a time; write seconds, such as 12.345")))?;
        if time_s < self.last_time_s {
            let reason =
                format!("its time {time_s} is before {} of the row above; sort by time_s", self.last_time_s);
            return Err(wrong(reason));
        }
        self.last_time_s = time_s;
        let op = field(self.columns.op);
        let op = match op.to_ascii_uppercase().as_str() {
            "GET" => RowOp::Get,
            "PUT" => RowOp::Put,
            "DELETE" => RowOp::Delete,
            _ => return Err(wrong(format!("{op:?} is not an operation; write GET, PUT or DELETE"))),
        };
        let size = match field(self.columns.size) {
            "" => None,
            text => Some(text.parse().map_err(|_| wrong(format!("{text:?} is not a size; write bytes")))?),
        };
        let key = field(self.columns.key).to_owned();
        if key.is_empty() {
            return Err(wrong("it has no key".to_owned()));
        }
        let group = self.columns.group.map_or("", field).to_owned();
        Ok(Row { line, time_s, op, key, size, group })
    }
}

impl<R: Read> Iterator for Rows<R> {
    type Item = Result<Row, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.source.next() {
            Ok(None) => None,
            Ok(Some((line, record))) => Some(self.row(line, &record)),
            Err(error) => Some(Err(error)),
        }
    }
}
