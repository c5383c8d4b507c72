//! Reasons why a picture is not read or prepared.

/// The reason why a picture is not read or prepared.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The bytes are no picture of a known format.
    #[error("no picture: expected PNG, JPEG, WebP, GIF or BMP")]
    Format,
    /// The file is damaged, or has a variant that is not known.
    #[error("the {0} file cannot be read: {1}")]
    Unreadable(&'static str, String),
    /// The picture is larger than a limit.
    #[error("the picture has {width} by {height} pixels, more than {max}")]
    TooLarge {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// The limit, in pixels.
        max: u64,
    },
    /// What the rules make of the picture is larger than a limit.
    #[error("the rules of the processor make {found} pixels of it, more than {max}")]
    TooMany {
        /// In pixels of all views.
        found: u64,
        /// The limit, in pixels.
        max: u64,
    },
    /// The picture does not fit the rules.
    #[error("the picture does not fit the rules of the processor: {0}")]
    Unfit(String),
    /// The rules are not sound.
    #[error("the rules of the processor: {0}")]
    Rules(String),
}
