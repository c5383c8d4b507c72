//! Forms with files: bodies of the type `multipart/form-data`.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use futures_util::stream;

use super::error::{Error, quoted};

/// Maximum number of parts of a form.
const MAX_PARTS: usize = 1000;

/// A part of a form: a field or a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FormPart {
    pub(crate) name: String,
    /// The name of its file, if it has one.
    pub(crate) file_name: Option<String>,
    pub(crate) data: Bytes,
}

impl FormPart {
    /// The part as a text.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let text = std::str::from_utf8(&self.data);
        let text = text.map_err(|_| Error::wrong_type(quoted(&self.name), "expected UTF-8"))?;
        Ok(text.to_owned())
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// Whether a body with these headers is a form.
pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let essence = content_type(headers).split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// The parts of a form, in their order.
///
/// # Errors
/// The body is no form, or a malformed one.
pub(crate) async fn parts(headers: &HeaderMap, body: Bytes) -> Result<Vec<FormPart>, Error> {
    let kind = content_type(headers);
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        let message = format!(
            "the content type is `{}`, expected `multipart/form-data` with a boundary",
            quoted(kind)
        );
        Error::Body(message)
    })?;
    let body = stream::iter([Ok::<_, Infallible>(body)]);
    let mut form = multer::Multipart::new(body, boundary);
    let wrong = |error: multer::Error| Error::Body(format!("the form is wrong: {error}"));
    let mut parts = Vec::new();
    while let Some(part) = form.next_field().await.map_err(wrong)? {
        if parts.len() == MAX_PARTS {
            return Err(Error::Body(format!(
                "the form has more than {MAX_PARTS} parts"
            )));
        }
        parts.push(FormPart {
            name: part.name().unwrap_or_default().to_owned(),
            file_name: part.file_name().map(str::to_owned),
            data: part.bytes().await.map_err(wrong)?,
        });
    }
    Ok(parts)
}
