//! The pieces of a text while neighbours are joined: a doubly linked list in an array.
//!
//! Shared by the tokenizers that merge. Invariant: the live pieces cover the text without gaps, in order; a piece that
//! was joined to its predecessor has length 0.

use std::ops::Range;

/// The index for no neighbour.
pub(super) const NONE: u32 = u32::MAX;

struct Piece {
    symbol: u32,
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

/// The pieces by index; indices stay valid while pieces are joined.
#[derive(Default)]
pub(super) struct Chain {
    pieces: Vec<Piece>,
}

impl Chain {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// Appends a piece. `symbol` is the caller's; texts are shorter than 4 GiB.
    #[inline]
    pub(super) fn push(&mut self, symbol: u32, start: u32, len: u32) {
        let index = self.len();
        if let Some(last) = self.pieces.last_mut() {
            last.next = index;
        }
        self.pieces.push(Piece {
            symbol,
            start,
            len,
            prev: index.wrapping_sub(1),
            next: NONE,
        });
    }

    #[inline]
    pub(super) fn symbol(&self, index: u32) -> u32 {
        self.pieces[index as usize].symbol
    }

    /// The byte range from the start of `left` to the end of `right`.
    #[inline]
    pub(super) fn span(&self, left: u32, right: u32) -> Range<usize> {
        let end = &self.pieces[right as usize];
        self.pieces[left as usize].start as usize..(end.start + end.len) as usize
    }

    /// Whether both pieces are alive and together still have `bytes` bytes.
    #[inline]
    pub(super) fn is_pair(&self, left: u32, right: u32, bytes: u32) -> bool {
        let (left, right) = (&self.pieces[left as usize], &self.pieces[right as usize]);
        left.len != 0 && right.len != 0 && left.len + right.len == bytes
    }

    /// Joins `right` to its neighbour `left`, whose symbol becomes `symbol`.
    #[inline]
    pub(super) fn join(&mut self, left: u32, right: u32, symbol: u32) {
        let Piece { len, next, .. } = self.pieces[right as usize];
        self.pieces[right as usize].len = 0;
        let piece = &mut self.pieces[left as usize];
        piece.len += len;
        piece.next = next;
        piece.symbol = symbol;
        if next != NONE {
            self.pieces[next as usize].prev = left;
        }
    }

    /// The indices of the neighbours, [`NONE`] at the ends.
    #[inline]
    pub(super) fn neighbours(&self, index: u32) -> (u32, u32) {
        let piece = &self.pieces[index as usize];
        (piece.prev, piece.next)
    }

    /// Symbols and byte ranges of the live pieces.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        self.pieces
            .iter()
            .filter(|piece| piece.len != 0)
            .map(|piece| {
                let start = piece.start as usize;
                (piece.symbol, start..start + piece.len as usize)
            })
    }
}
