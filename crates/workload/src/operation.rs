//! Operations, and the sets of objects that they read.

/// One operation of a client. Objects are numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads these objects together, with one response time for all.
    Read(Objects),
    /// Overwrites an existing object.
    Update(u64),
    /// Writes a new object.
    Insert(u64),
    /// Reads an object, then overwrites it.
    ReadModifyWrite(u64),
    /// Removes an object.
    Delete(u64),
}

/// Kind of an operation. Results are counted per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reads one object, or many at once.
    Read,
    /// Overwrites an existing object.
    Update,
    /// Writes a new object.
    Insert,
    /// Reads an object, then overwrites it.
    ReadModifyWrite,
    /// Removes an object.
    Delete,
}

impl Kind {
    /// Returns the kind's name in reports.
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

/// The objects of a read: at least one, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objects {
    /// Objects with consecutive numbers.
    Run {
        /// The first object.
        first: u64,
        /// Number of objects, at least one.
        count: u64,
    },
    /// Arbitrary objects.
    List(Vec<u64>),
}

impl Operation {
    /// Creates a read of one object.
    pub fn read_one(object: u64) -> Self {
        Self::read_run(object, 1)
    }

    /// Creates a read of `count` neighbours from `first`.
    pub fn read_run(first: u64, count: u64) -> Self {
        Self::Read(Objects::Run { first, count })
    }

    /// Returns the operation's kind.
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
    /// Returns the number of objects.
    pub fn count(&self) -> u64 {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len() as u64,
        }
    }

    /// Iterates over the objects' numbers.
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
