//! The body of a response that is a file.

use std::fs::File;
use std::io::Read;

use axum::body::{Body, Bytes};
use futures_util::stream;

/// Number of bytes of a file that are sent at a time.
const PIECE: usize = 256 << 10;

/// The first `n_bytes` bytes of a file.
pub(crate) fn file_body(file: File, n_bytes: u64) -> Body {
    Body::from_stream(stream::iter(Pieces(file.take(n_bytes))))
}

/// The bytes of a file as a stream of pieces.
struct Pieces(std::io::Take<File>);

impl Iterator for Pieces {
    type Item = std::io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = Vec::with_capacity(PIECE);
        match (&mut self.0).take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece.into())),
            Err(error) => Some(Err(error)),
        }
    }
}
