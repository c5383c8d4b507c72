//! Media in requests: the parts of messages that have them, where their bytes come from, and their preparation.
//!
//! Nothing is decoded on threads that serve requests. Invariant: a request has at most so many media, bytes and values, and few
//! requests are prepared at a time; what is prepared is held by at most so many bytes of running requests.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use lab_core::models::media::{MediaError, PreparedMedium, PromptMedia};
use lab_core::plan::Media;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::http::error::{Error, refuse};
use crate::served::{ServedMedia, ServedModel};

use super::json_access::malformed;

/// Maximum number of media in a request.
const MAX_MEDIA: usize = 128;
/// Maximum size of the files of all media of a request, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of values that towers read for all media of a request.
const MAX_VALUES: usize = 128 << 20;
/// Maximum time in which media are fetched for a request.
const FETCH_TIME: Duration = Duration::from_secs(30);
/// Requests for which media are read from elsewhere at a time.
static READERS: Semaphore = Semaphore::const_new(16);
/// Requests whose media are prepared at a time: a picture may take some hundred megabytes meanwhile.
static PREPARERS: Semaphore = Semaphore::const_new(2);
/// The memory of prepared media of requests that wait or run, in MiB.
static PREPARED: Semaphore = Semaphore::const_new(2048);

/// Base64 as clients write it, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Where the bytes of a medium are.
#[derive(Clone, Debug)]
enum MediumSource<'a> {
    Base64(Cow<'a, str>),
    /// An address, a data URL, or a path.
    Url(Cow<'a, str>),
    Bytes(Vec<u8>),
}

/// A medium of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct MessageMedium<'a> {
    /// The field that it stands in.
    param: String,
    /// None: what its bytes are.
    media: Option<Media>,
    source: MediumSource<'a>,
}

/// What a part of a message is, if it is a medium.
pub(super) fn media_of(part: &Value) -> Option<Media> {
    match part["type"].as_str()? {
        "image_url" | "input_image" => Some(Media::Image),
        "audio_url" | "input_audio" => Some(Media::Audio),
        _ => None,
    }
}

/// The part of a message with a picture at an address, which may be a data URL.
pub(crate) fn image_part(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

impl<'a> MessageMedium<'a> {
    /// The medium of a part of a message; none if it is another part.
    pub(super) fn read(param: &str, part: &'a Value) -> Result<Option<Self>, Error> {
        let Some(media) = media_of(part) else {
            return Ok(None);
        };
        let (param, source) = match part["type"].as_str() {
            Some("input_audio") => {
                let param = format!("{param}.input_audio.data");
                let Some(data) = part["input_audio"]["data"].as_str() else {
                    return Err(malformed(&param, "a string"));
                };
                // Some clients send a data URL there.
                let source = match data.starts_with("data:") {
                    true => MediumSource::Url(data.into()),
                    false => MediumSource::Base64(data.into()),
                };
                (param, source)
            }
            _ => {
                let name = match media {
                    Media::Image => "image_url",
                    Media::Audio => "audio_url",
                };
                let param = format!("{param}.{name}");
                let url = &part[name];
                let Some(url) = url.as_str().or_else(|| url["url"].as_str()) else {
                    return Err(malformed(&param, "an object with `url`"));
                };
                (param, MediumSource::Url(url.into()))
            }
        };
        Ok(Some(Self {
            param,
            media: Some(media),
            source,
        }))
    }

    /// The field that it stands in.
    pub(crate) fn param(&self) -> &str {
        &self.param
    }

    /// A picture or a sound in base64.
    pub(super) fn of_base64(param: String, data: &'a str) -> Self {
        Self {
            param,
            media: None,
            source: MediumSource::Base64(data.into()),
        }
    }

    fn into_owned(self) -> MessageMedium<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        MessageMedium {
            param: self.param,
            media: self.media,
            source: match self.source {
                MediumSource::Base64(text) => MediumSource::Base64(owned(text)),
                MediumSource::Url(text) => MediumSource::Url(owned(text)),
                MediumSource::Bytes(bytes) => MediumSource::Bytes(bytes),
            },
        }
    }

    /// Whether its bytes are not in the request.
    fn is_elsewhere(&self) -> bool {
        matches!(&self.source, MediumSource::Url(url) if data_of(url).is_none())
    }

    /// Reads its bytes from elsewhere, at most `max`. Blocks.
    fn fetch(&mut self, served: &ServedModel, max: u64, end: Instant) -> Result<u64, Error> {
        match &self.source {
            MediumSource::Url(url) if self.is_elsewhere() => {
                let bytes = served.media_access.read(url, max, end);
                let bytes = bytes.or_else(|error| refuse(&self.param, format!(": {error}")))?;
                let n = bytes.len() as u64;
                self.source = MediumSource::Bytes(bytes);
                Ok(n)
            }
            _ => Ok(0),
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        let text = match &self.source {
            MediumSource::Bytes(bytes) => return Ok(Cow::Borrowed(bytes)),
            MediumSource::Base64(text) => text,
            MediumSource::Url(url) => data_of(url)
                .flatten()
                .ok_or_else(|| malformed(&self.param, "a data URL in base64"))?,
        };
        // Some programs break lines.
        let text: Cow<'_, str> = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
            true => text.split_ascii_whitespace().collect::<String>().into(),
            false => text.into(),
        };
        let bytes = BASE64.decode(text.as_bytes());
        bytes
            .map(Cow::Owned)
            .map_err(|_| malformed(&self.param, "base64"))
    }
}

/// The text of a data URL, if it is one: `data:image/png;base64,...`. None within it: it is not in base64.
fn data_of(url: &str) -> Option<Option<&str>> {
    let start = url.get(..5)?;
    start.eq_ignore_ascii_case("data:").then(|| {
        let (head, data) = url[5..].split_once(',')?;
        let is_base64 = head.len() >= 7 && head.is_char_boundary(head.len() - 7);
        (is_base64 && head[head.len() - 7..].eq_ignore_ascii_case(";base64")).then_some(data)
    })
}

/// What the bytes of a file are by their first ones: a sound, or else a picture.
pub(super) fn kind_of(bytes: &[u8]) -> Media {
    let is_sound = match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, rest @ ..] => rest.starts_with(b"WAVE"),
        [_, _, _, _, b'f', b't', b'y', b'p', rest @ ..] => rest.starts_with(b"M4A"),
        // MPEG audio without and with tags.
        [0xff, second, ..] if second & 0xe0 == 0xe0 => true,
        _ => [b"ID3".as_slice(), b"fLaC", b"OggS"]
            .iter()
            .any(|start| bytes.starts_with(start)),
    };
    if is_sound { Media::Audio } else { Media::Image }
}

/// A file of any kind in a request.
pub(crate) enum SentFile {
    /// A picture or a sound, as a part of a message.
    Medium(Value),
    Text(String),
}

/// The file in a data URL, or in base64 alone.
pub(crate) fn file_of(param: &str, data: &str) -> Result<SentFile, Error> {
    const IMAGES: [&[u8]; 4] = [b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"];
    let source = match data_of(data) {
        Some(_) => MediumSource::Url(data.into()),
        None => MediumSource::Base64(data.into()),
    };
    let medium = MessageMedium {
        param: param.to_owned(),
        media: None,
        source,
    };
    let bytes = medium.bytes()?.into_owned();
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    let is_image = is_webp || IMAGES.iter().any(|start| bytes.starts_with(start));
    let text = data_of(data).flatten().unwrap_or(data);
    match kind_of(&bytes) {
        Media::Audio => Ok(SentFile::Medium(
            json!({ "type": "input_audio", "input_audio": { "data": text } }),
        )),
        Media::Image if is_image => Ok(SentFile::Medium(image_part(&format!(
            "data:;base64,{text}"
        )))),
        Media::Image => String::from_utf8(bytes).map(SentFile::Text).map_err(|_| {
            let message = format!("`{param}`: expected a picture, a sound or a text in UTF-8");
            Error::unsupported(param, message)
        }),
    }
}

/// The media of a request, prepared.
#[derive(Debug, Default)]
pub(crate) struct PreparedMedia {
    media: Vec<PreparedMedium>,
    /// Their memory.
    held: HeldMemory,
}

/// The memory of the prepared media of a request, counted until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct HeldMemory(
    #[expect(dead_code, reason = "it is held")] Option<SemaphorePermit<'static>>,
);

/// Refuses media of a kind that the model does not take.
pub(crate) fn check_taken(served: &ServedModel, media: &[MessageMedium<'_>]) -> Result<(), Error> {
    if media.len() > MAX_MEDIA {
        let message = format!(
            ": {} pictures and sounds, expected at most {MAX_MEDIA}",
            media.len()
        );
        return refuse(&media[MAX_MEDIA].param, message);
    }
    media
        .iter()
        .filter_map(|medium| Some((medium, medium.media?)))
        .try_for_each(|(medium, kind)| taken(served, &medium.param, kind).map(drop))
}

/// How a model takes media of a kind.
fn taken<'s>(served: &'s ServedModel, param: &str, kind: Media) -> Result<&'s ServedMedia, Error> {
    let of = served.media.as_ref();
    of.filter(|of| of.processors.takes(kind)).ok_or_else(|| {
        let name = match kind {
            Media::Image => "pictures",
            Media::Audio => "sounds",
        };
        Error::unsupported(param, format!("`{param}`: the model takes no {name}"))
    })
}

/// Prepares media for the towers of a model.
pub(crate) async fn prepared(
    served: &Arc<ServedModel>,
    media: Vec<MessageMedium<'_>>,
) -> Result<PreparedMedia, Error> {
    check_taken(served, &media)?;
    if media.is_empty() {
        return Ok(PreparedMedia::default());
    }
    let media = media.into_iter().map(MessageMedium::into_owned);
    let mut media: Vec<MessageMedium<'static>> = media.collect();
    if media.iter().any(MessageMedium::is_elsewhere) {
        // A semaphore that is never closed always gives a turn.
        let turn = READERS.acquire().await.map_err(Error::engine)?;
        let served = Arc::clone(served);
        media = blocking(move || {
            let _turn = turn;
            fetch_all(&served, media)
        })
        .await?;
    }
    let turn = PREPARERS.acquire().await.map_err(Error::engine)?;
    let own = Arc::clone(served);
    let (media, turn) = blocking(move || Ok((prepare_all(&own, &media)?, turn))).await?;
    // Until there is memory for it, no other request is prepared.
    let n_values: usize = media.iter().map(n_values).sum();
    let megabytes = (n_values * size_of::<f32>()).div_ceil(1 << 20) as u32;
    let held = PREPARED
        .acquire_many(megabytes)
        .await
        .map_err(Error::engine)?;
    drop(turn);
    Ok(PreparedMedia {
        media,
        held: HeldMemory(Some(held)),
    })
}

/// As [`prepared`], in the calling thread.
pub(crate) fn prepared_here(
    served: &ServedModel,
    media: Vec<MessageMedium<'_>>,
) -> Result<PreparedMedia, Error> {
    check_taken(served, &media)?;
    let media = fetch_all(served, media)?;
    Ok(PreparedMedia {
        media: prepare_all(served, &media)?,
        held: HeldMemory::default(),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(Error::engine)?
}

fn fetch_all<'a>(
    served: &ServedModel,
    mut media: Vec<MessageMedium<'a>>,
) -> Result<Vec<MessageMedium<'a>>, Error> {
    let (end, mut left) = (Instant::now() + FETCH_TIME, MAX_BYTES);
    for medium in &mut media {
        left -= medium.fetch(served, left, end)?;
    }
    Ok(media)
}

fn n_values(medium: &PreparedMedium) -> usize {
    let views = medium.prepared.views.iter();
    views.map(|view| view.values.len()).sum()
}

fn prepare_all(
    served: &ServedModel,
    media: &[MessageMedium<'_>],
) -> Result<Vec<PreparedMedium>, Error> {
    let (mut files, mut n_bytes) = (Vec::with_capacity(media.len()), 0);
    for medium in media {
        let bytes = medium.bytes()?;
        n_bytes += bytes.len() as u64;
        if n_bytes > MAX_BYTES {
            let message =
                format!(": the pictures and sounds up to here have more than {MAX_BYTES} bytes");
            return refuse(&medium.param, message);
        }
        let kind = medium.media.unwrap_or_else(|| kind_of(&bytes));
        taken(served, &medium.param, kind)?;
        files.push((kind, bytes));
    }
    let Some(of) = &served.media else {
        return Ok(Vec::new());
    };
    let longest = of.processors.longest_sound(&files);
    let longest = longest.or_else(|(at, error)| refuse(&media[at].param, format!(": {error}")))?;
    let mut all: Vec<PreparedMedium> = Vec::with_capacity(media.len());
    let (mut n_all, mut n_rows) = (0, 0);
    let n_ctx = served.handle.limits().n_ctx;
    for (at, (kind, bytes)) in files.iter().enumerate() {
        let param = &media[at].param;
        let index = all.iter().filter(|of| of.media == *kind).count();
        let prepared = of.processors.prepare(*kind, bytes, index, longest);
        let prepared = prepared.or_else(|error| refuse(param, format!(": {error}")))?;
        n_all += n_values(&prepared);
        n_rows += prepared.n_rows();
        if n_all > MAX_VALUES {
            let message = format!(
                ": the pictures and sounds up to here are more than {MAX_VALUES} values for the model"
            );
            return refuse(param, message);
        }
        if n_rows > n_ctx {
            let message = format!(
                ": the pictures and sounds up to here take {n_rows} tokens of the prompt, and the context holds {n_ctx}"
            );
            return refuse(param, message);
        }
        all.push(prepared);
    }
    Ok(all)
}

/// A prompt with media: its tokens, and the places of the media among them.
#[derive(Debug)]
pub(crate) struct MediaPrompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) media: Option<Arc<PromptMedia>>,
    pub(crate) held: HeldMemory,
}

impl From<Vec<u32>> for MediaPrompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            media: None,
            held: HeldMemory::default(),
        }
    }
}

impl PreparedMedia {
    pub(crate) fn is_empty(&self) -> bool {
        self.media.is_empty()
    }

    /// The text of a prompt in which each medium has what stands for it; none if the text has other places than media.
    pub(crate) fn expanded(&self, served: &ServedModel, text: &str) -> Result<String, MediaError> {
        match &served.media {
            Some(of) if !self.is_empty() => of.processors.expanded(text, &self.media),
            _ => Ok(text.to_owned()),
        }
    }

    /// The prompt of such a text. `encode` gives its tokens; `field` is what errors name.
    pub(crate) fn prompt(
        self,
        served: &ServedModel,
        field: &str,
        tokens: Vec<u32>,
    ) -> Result<MediaPrompt, Error> {
        let Some(of) = served.media.as_ref().filter(|_| !self.is_empty()) else {
            return Ok(MediaPrompt {
                tokens,
                media: None,
                held: self.held,
            });
        };
        let id_of = |text: &str| served.handle.tokenizer().id_of(text);
        let places = of.processors.places(&tokens, &self.media, id_of);
        let places = places.or_else(|error| refuse(field, format!(": {error}")))?;
        let media = PromptMedia {
            media: self.media.into_iter().map(Arc::new).collect(),
            places,
        };
        let ranges = media.attending_ahead(tokens.len());
        let longest = ranges.iter().map(ExactSizeIterator::len).max();
        if let Some(found) = longest.filter(|found| *found > of.n_batch) {
            let message = format!(
                ": {found} tokens attend to each other, and the model reads at most {} in one pass",
                of.n_batch
            );
            return refuse(field, message);
        }
        Ok(MediaPrompt {
            tokens,
            media: Some(Arc::new(media)),
            held: self.held,
        })
    }

    /// The text in whose place each medium stands, by its kind.
    pub(super) fn markers<'s>(&'s self, served: &'s ServedModel) -> impl Iterator<Item = &'s str> {
        let of = served.media.as_ref();
        let markers = self
            .media
            .iter()
            .map(move |medium| of.and_then(|of| of.marker(medium.media)));
        markers.map(Option::unwrap_or_default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_are_read_in_the_ways_that_clients_write_them() {
        for (url, expected) in [
            ("data:image/png;base64,aGk=", Some("hi")),
            ("DATA:;BASE64,aGk", Some("hi")),
            ("data:image/png;charset=x;base64,aG\n k=", Some("hi")),
            ("data:image/png,hi", None),
            ("data:image/png;base64", None),
            ("data:image/png;base64,a", None),
            ("data:image/png;base64,aGk=%3D", None),
        ] {
            let part = image_part(url);
            let medium = MessageMedium::read("p", &part)
                .expect("a part")
                .expect("a medium");
            assert!(!medium.is_elsewhere());
            let bytes = medium
                .bytes()
                .ok()
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            assert_eq!(bytes.as_deref(), expected, "{url}");
        }
        for url in ["http://a/b", "file:///a", "a.png", "é", "dat"] {
            let part = image_part(url);
            let medium = MessageMedium::read("p", &part)
                .expect("a part")
                .expect("a medium");
            assert!(medium.is_elsewhere(), "{url}");
        }
        let part = json!({ "type": "image_url", "image_url": { "url": 1 } });
        let error = MessageMedium::read("p", &part)
            .expect_err("no address")
            .to_string();
        assert!(error.contains("`p.image_url`"), "{error}");
    }

    #[test]
    fn files_are_told_by_their_first_bytes() {
        for (bytes, expected) in [
            (b"RIFF....WAVEfmt ".as_slice(), Media::Audio),
            (b"RIFF....WEBPVP8 ", Media::Image),
            (b"\xff\xfb\x90", Media::Audio),
            (b"\xff\xd8\xff\xe0", Media::Image),
            (b"ID3\x04", Media::Audio),
            (b"fLaC", Media::Audio),
            (b"....ftypM4A ", Media::Audio),
            (b"\x89PNG", Media::Image),
            (b"", Media::Image),
        ] {
            assert_eq!(kind_of(bytes), expected, "{bytes:?}");
        }
    }
}
