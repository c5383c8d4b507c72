//! A value that counts how often it could have been changed.

use std::ops::{Deref, DerefMut};

/// A value with a number that differs after each access that may change it.
pub(super) struct Versioned<T> {
    value: T,
    version: u64,
}

impl<T> Versioned<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value, version: 0 }
    }

    /// For a change on which nothing depends that was made of the value: it is not counted.
    pub(super) fn uncounted(&mut self) -> &mut T {
        &mut self.value
    }

    /// While it stays the same, so does the value.
    pub(super) fn version(&self) -> u64 {
        self.version
    }
}

impl<T> Deref for Versioned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Versioned<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.version += 1;
        &mut self.value
    }
}
