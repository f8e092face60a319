//! Operations, and the sets of objects that they read.

/// One operation of a client. Objects are numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads these objects, all at once: one response time for the whole.
    Read(Objects),
    /// Writes an object that is there anew.
    Update(u64),
    /// Writes an object that is not there yet.
    Insert(u64),
    /// Reads an object and then writes it anew.
    ReadModifyWrite(u64),
    /// Removes an object.
    Delete(u64),
}

/// What an operation does; results are counted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reads one object, or many at once.
    Read,
    /// Writes an object that is there anew.
    Update,
    /// Writes one that is not there yet.
    Insert,
    /// Reads an object and then writes it anew.
    ReadModifyWrite,
    /// Removes one.
    Delete,
}

impl Kind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::ReadModifyWrite => "read-modify-write",
            Self::Delete => "delete",
        }
    }
}

/// What a read wants: at least one object, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objects {
    /// Neighbours.
    Run {
        /// The first object.
        first: u64,
        /// How many, at least one.
        count: u64,
    },
    /// Any.
    List(Vec<u64>),
}

impl Operation {
    /// A read of one object.
    pub fn read_one(object: u64) -> Self {
        Self::read_run(object, 1)
    }

    /// A read of neighbours.
    pub fn read_run(first: u64, count: u64) -> Self {
        Self::Read(Objects::Run { first, count })
    }

    /// What it does.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Read(_) => Kind::Read,
            Self::Update(_) => Kind::Update,
            Self::Insert(_) => Kind::Insert,
            Self::ReadModifyWrite(_) => Kind::ReadModifyWrite,
            Self::Delete(_) => Kind::Delete,
        }
    }
}

impl Objects {
    /// How many.
    pub fn count(&self) -> u64 {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len() as u64,
        }
    }

    /// Their numbers.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (run, list) = match self {
            Self::Run { first, count } => (*first..first + count, &[][..]),
            Self::List(list) => (0..0, &list[..]),
        };
        run.chain(list.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_tell_their_objects() {
        let run = Objects::Run { first: 3, count: 2 };
        let list = Objects::List(vec![9, 1, 4]);
        assert!(run.count() == 2 && run.iter().eq([3, 4]));
        assert!(list.count() == 3 && list.iter().eq([9, 1, 4]));
    }
}
