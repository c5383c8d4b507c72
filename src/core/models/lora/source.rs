//! Path of an adapter and the scale of its updates.

use std::path::{Path, PathBuf};

/// Path of an adapter and the scale of its updates.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// A GGUF file or a PEFT folder.
    pub path: PathBuf,
    pub scale: f32,
}

impl std::str::FromStr for AdapterSource {
    type Err = String;

    /// Parses `FILE` or `FILE=SCALE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (path, scale) = match text.rsplit_once('=') {
            Some((path, scale)) if !Path::new(text).exists() => {
                let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
                let fault = || format!("expected FILE or FILE=SCALE, found `{text}`");
                (path, scale.ok_or_else(fault)?)
            }
            _ => (text, 1.0),
        };
        match path {
            "" => Err("expected FILE or FILE=SCALE, found no file".into()),
            path => Ok(Self {
                path: path.into(),
                scale,
            }),
        }
    }
}
