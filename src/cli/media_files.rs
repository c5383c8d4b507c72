//! Files of pictures and sounds on the command line, as parts of a message of a chat request.
//!
//! Not here: what is in them. The request that they are part of decodes them.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};

use lab_base::util::limited_read;
use lab_core::models::OpenedModel;
use lab_core::plan::Media;

use super::Failure;
use super::output::at;

/// Maximum size of a file in bytes: a sound of two hours without compression.
const MAX_FILE: u64 = 512 << 20;

/// A file, and what it is read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MediaFile {
    pub(super) media: Media,
    pub(super) path: PathBuf,
}

impl MediaFile {
    /// The part of a message that has the bytes of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is too large.
    pub(super) fn part(&self) -> Result<Value, Failure> {
        let bytes = limited_read::bytes(&self.path, MAX_FILE);
        let data = BASE64_STANDARD.encode(bytes.map_err(|error| at(&self.path, error))?);
        let ending = self.path.extension().and_then(|ending| ending.to_str());
        let ending =
            ending.filter(|ending| ending.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let ending = ending.map(str::to_ascii_lowercase);
        Ok(match self.media {
            Media::Image => {
                let format = match ending.as_deref() {
                    None => "png",
                    Some("jpg") => "jpeg",
                    Some(ending) => ending,
                };
                let url = format!("data:image/{format};base64,{data}");
                json!({ "type": "image_url", "image_url": { "url": url } })
            }
            Media::Audio => {
                let format = ending.as_deref().unwrap_or("wav");
                json!({ "type": "input_audio", "input_audio": { "data": data, "format": format } })
            }
        })
    }
}

/// A message of the user: media, then a text.
pub(super) fn user_message(mut parts: Vec<Value>, text: &str) -> Value {
    let content: Value = match parts.is_empty() {
        true => text.into(),
        false => {
            parts.push(json!({ "type": "text", "text": text }));
            parts.into()
        }
    };
    json!({ "role": "user", "content": content })
}

/// What media of a kind are called.
pub(super) fn name_of(media: Media) -> &'static str {
    match media {
        Media::Image => "pictures",
        Media::Audio => "sounds",
    }
}

/// The files of the options `--image` and `--audio`, in the order in which they are given.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaFiles(Vec<MediaFile>);

/// The options as clap reads them: those of each kind for themselves.
#[derive(Debug, Args)]
struct MediaOptions {
    /// Picture that the prompt begins with; may be repeated, also together with --audio
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Sound that the prompt begins with; may be repeated
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
}

impl Args for MediaFiles {
    fn augment_args(command: Command) -> Command {
        MediaOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        MediaOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for MediaFiles {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of_kind = |media: Media| {
            let places = matches.indices_of(media.name()).into_iter().flatten();
            let paths = matches.get_many::<PathBuf>(media.name());
            let paths = paths.into_iter().flatten().cloned();
            let files = paths.map(move |path| MediaFile { media, path });
            places.zip(files)
        };
        let mut all: Vec<(usize, MediaFile)> = Media::ALL.into_iter().flat_map(of_kind).collect();
        all.sort_by_key(|(place, _)| *place);
        Ok(Self(all.into_iter().map(|(_, file)| file).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl MediaFiles {
    /// Refuses files that the model does not take.
    pub(super) fn check(&self, opened: &OpenedModel) -> Result<(), Failure> {
        let taken = opened.media.as_ref().map(|media| &media.processors);
        let is_taken = |media: Media| taken.is_some_and(|taken| taken.takes(media));
        match self.0.iter().find(|file| !is_taken(file.media)) {
            Some(MediaFile { media, path }) => anyhow::bail!(
                "--{} {}: `{}` takes no {}",
                media.name(),
                path.display(),
                opened.name,
                name_of(*media)
            ),
            None => Ok(()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the pictures.
    ///
    /// # Errors
    /// A file cannot be read, or is too large.
    pub(super) fn pictures(&self) -> Result<Vec<(&Path, Vec<u8>)>, Failure> {
        let pictures = self.0.iter().filter(|file| file.media == Media::Image);
        let read = |file: &'_ MediaFile| {
            limited_read::bytes(&file.path, MAX_FILE).map_err(|error| at(&file.path, error))
        };
        pictures
            .map(|file| Ok((file.path.as_path(), read(file)?)))
            .collect()
    }

    /// The parts of a message that have the files.
    ///
    /// # Errors
    /// A file cannot be read, or is too large.
    pub(super) fn parts(&self) -> Result<Vec<Value>, Failure> {
        self.0.iter().map(MediaFile::part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        media: MediaFiles,
        words: Vec<String>,
    }

    #[test]
    fn files_keep_their_order_over_both_options() {
        let words = "x --image a.png --audio b.wav --image=c.jpg p --audio d.mp3";
        let cli = Cli::try_parse_from(words.split(' ')).expect("they are read");
        let found: Vec<(Media, &str)> = cli
            .media
            .0
            .iter()
            .map(|file| (file.media, file.path.to_str().expect("text")))
            .collect();
        let (image, audio) = (Media::Image, Media::Audio);
        assert_eq!(
            found,
            [
                (image, "a.png"),
                (audio, "b.wav"),
                (image, "c.jpg"),
                (audio, "d.mp3")
            ]
        );
        assert_eq!(cli.words, ["p"]);
        let none = Cli::try_parse_from(["x"]).expect("they are read");
        assert!(none.media.0.is_empty());
    }

    #[test]
    fn a_part_has_the_bytes_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = |media: Media, name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, b"abc").expect("a writable folder");
            MediaFile { media, path }.part().expect("a file")
        };
        let url = part(Media::Image, "x.JPG")["image_url"]["url"].clone();
        assert_eq!(url, "data:image/jpeg;base64,YWJj");
        let sound = part(Media::Audio, "x.mp3")["input_audio"].clone();
        assert_eq!(sound, json!({ "data": "YWJj", "format": "mp3" }));
        let message = user_message(vec![part(Media::Audio, "x")], "t");
        assert_eq!(
            message["content"][1],
            json!({ "type": "text", "text": "t" })
        );
        assert_eq!(user_message(Vec::new(), "t")["content"], "t");
    }
}
