//! Whose the files of a store are: the name of the owner is part of the name of the file.
//!
//! Invariant: neither names of owners nor ids have a `~`.

/// Between the name of the owner and the id.
const SEPARATOR: char = '~';

/// Whose files a request sees: those of its owner, or all.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    pub owner: &'a str,
    pub sees_all: bool,
}

impl Viewer<'_> {
    /// Who sees everything, and owns what has no owner.
    pub const ALL: Viewer<'static> = Viewer {
        owner: "",
        sees_all: true,
    };

    pub(super) fn sees(&self, owner: &str) -> bool {
        self.sees_all || self.owner == owner
    }
}

/// The name of a file without its ending.
pub(super) fn file_name(owner: &str, id: &str) -> String {
    match owner {
        "" => id.to_owned(),
        owner => format!("{owner}{SEPARATOR}{id}"),
    }
}

/// The owner and the id in the name of a file.
pub(super) fn owner_and_id(name: &str) -> (&str, &str) {
    name.split_once(SEPARATOR).unwrap_or(("", name))
}
