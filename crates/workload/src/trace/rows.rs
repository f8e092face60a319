//! The rows of a trace, one by one.

use std::io::Read;

use super::TraceError;

/// What a row asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOp {
    Get,
    Put,
    Delete,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub line: u64,
    pub time_s: f64,
    pub op: RowOp,
    pub key: String,
    pub size: Option<u64>,
    /// Empty for none.
    pub group: String,
}

/// Reads rows; checks each by itself, and that times do not go back.
pub(super) struct Rows<R> {
    reader: csv::Reader<R>,
    columns: Columns,
    last_time_s: f64,
}

/// Where the columns are.
#[derive(Clone, Copy, Debug)]
struct Columns {
    time: usize,
    op: usize,
    key: usize,
    size: usize,
    group: Option<usize>,
}

impl<R: Read> Rows<R> {
    /// Reads the headings.
    pub(super) fn new(source: R) -> Result<Self, TraceError> {
        let mut reader =
            csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(source);
        let headings = reader.headers().map_err(explain)?.clone();
        let line = headings.position().map_or(1, csv::Position::line);
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
            time: need("time_s")?,
            op: need("op")?,
            key: need("key")?,
            size: need("size")?,
            group: find("group"),
        };
        Ok(Self { reader, columns, last_time_s: f64::NEG_INFINITY })
    }

    fn row(&mut self, record: &csv::StringRecord) -> Result<Row, TraceError> {
        let line = record.position().map_or(0, csv::Position::line);
        let field = |column: usize| record.get(column).unwrap_or("");
        let wrong = |reason: String| TraceError::line(line, reason);
        let time = field(self.columns.time);
        let time_s: f64 = time
            .parse()
            .ok()
            .filter(|time: &f64| time.is_finite())
            .ok_or_else(|| wrong(format!("{time:?} is no time; write seconds, such as 12.345")))?;
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
            _ => return Err(wrong(format!("{op:?} is no operation; write GET, PUT or DELETE"))),
        };
        let size = match field(self.columns.size) {
            "" => None,
            text => Some(text.parse().map_err(|_| wrong(format!("{text:?} is no size; write bytes")))?),
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
        let mut record = csv::StringRecord::new();
        match self.reader.read_record(&mut record) {
            Ok(false) => None,
            Ok(true) => Some(self.row(&record)),
            Err(error) => Some(Err(explain(error))),
        }
    }
}

fn explain(error: csv::Error) -> TraceError {
    let line = error.position().map(csv::Position::line);
    let reason = match error.kind() {
        csv::ErrorKind::Io(error) => return TraceError::File(error.to_string()),
        csv::ErrorKind::Utf8 { .. } => "it is not UTF-8".to_owned(),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("it has {len} columns where the headings have {expected_len}")
        }
        _ => error.to_string(),
    };
    match line {
        Some(line) => TraceError::line(line, reason),
        None => TraceError::File(reason),
    }
}
