//! Parses SentencePiece's model file: a protocol buffer with the pieces, the training parameters and the normalisation.
//!
//! Only the fields that determine how texts are tokenized are read. Invariant: a model that SentencePiece refuses is
//! refused: with an empty or duplicate piece, with two unknown pieces, with none and no byte pieces instead, or with
//! missing or misnamed byte pieces.

use rustc_hash::FxHashSet;

use super::super::vocab::{TokenKind, named_byte};
use super::Error;
use super::files::FolderFiles;

#[derive(Debug)]
pub(super) struct SentencePieceModel {
    pub(super) pieces: Vec<Piece>,
    pub(super) algorithm: PieceAlgorithm,
    pub(super) normaliser: NormaliserSpec,
    pub(super) space_is_last: bool,
    byte_fallback: bool,
    /// Ids of the tokens with a role, as in the file; a negative one means none.
    roles: [(&'static str, i32); 3],
}

#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Option<TokenKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceAlgorithm {
    Unigram,
    /// Joins pieces by score. Models whose pieces are characters use it too: nothing is joined there.
    Pairs,
}

#[derive(Debug)]
pub(super) struct NormaliserSpec {
    pub(super) table: Vec<u8>,
    pub(super) adds_space: bool,
    pub(super) merges_spaces: bool,
    escapes_spaces: bool,
}

enum FieldValue<'a> {
    Number(u64),
    Bits(u32),
    Bytes(&'a [u8]),
    /// Eight bytes; no field that is read has this type.
    Other,
}

struct MessageFields<'a> {
    rest: &'a [u8],
    broken: bool,
}

impl SentencePieceModel {
    pub(super) fn read(files: &FolderFiles) -> Result<Self, Error> {
        let bytes = &files.vocabulary.bytes;
        let cut = |at: usize| {
            files.damaged(format!(
                "not a SentencePiece model: broken at byte {at} of {}",
                bytes.len()
            ))
        };
        let mut this = Self {
            pieces: Vec::new(),
            algorithm: PieceAlgorithm::Unigram,
            normaliser: NormaliserSpec {
                table: Vec::new(),
                adds_space: true,
                merges_spaces: true,
                escapes_spaces: true,
            },
            space_is_last: false,
            byte_fallback: false,
            roles: [("bos", 1), ("eos", 2), ("pad", -1)],
        };
        let mut fields = MessageFields::new(bytes);
        loop {
            let at = bytes.len() - fields.rest.len();
            let Some((field, value)) = fields.next() else {
                break;
            };
            let is_read = match (field, value) {
                (1, FieldValue::Bytes(piece)) => this.add_piece(piece),
                (2, FieldValue::Bytes(trainer)) => this.read_trainer(files, trainer)?,
                (3, FieldValue::Bytes(normaliser)) => this.read_normaliser(normaliser),
                (1..=3, _) => None,
                _ => Some(()),
            };
            is_read.ok_or_else(|| cut(at))?;
        }
        if fields.broken {
            return Err(cut(bytes.len() - fields.rest.len()));
        }
        this.check().map_err(|what| files.damaged(what))?;
        Ok(this)
    }

    pub(super) fn unknown(&self) -> Option<u32> {
        let is_unknown = |piece: &Piece| piece.kind == Some(TokenKind::Unknown);
        self.pieces.iter().position(is_unknown).map(|id| id as u32)
    }

    pub(super) fn roles(&self) -> Vec<(&'static str, u32)> {
        let id = |id: i32| {
            let id = u32::try_from(id).ok()?;
            let piece = self.pieces.get(id as usize)?;
            (piece.kind == Some(TokenKind::Control)).then_some(id)
        };
        let roles = self.roles.iter();
        roles
            .filter_map(|(role, value)| Some((*role, id(*value)?)))
            .collect()
    }

    /// Replaces the first `replaced` pieces by control tokens, which occur in no text; one of them, `unknown`, is the
    /// unknown token.
    pub(super) fn renumber(
        &mut self,
        leading: &[String],
        replaced: usize,
        unknown: Option<&str>,
    ) -> Result<(), String> {
        let Some(first) = self.pieces.get(..replaced) else {
            let n = self.pieces.len();
            return Err(format!("{n} pieces, expected at least {replaced}"));
        };
        let is_text =
            |piece: &Piece| !matches!(piece.kind, Some(TokenKind::Control | TokenKind::Unknown));
        if let Some(id) = first.iter().position(is_text) {
            let text = &first[id].text;
            return Err(format!(
                "piece {id} is `{text}`, expected one that is not text among the first {replaced}"
            ));
        }
        let token = |text: &String| Piece {
            text: text.clone(),
            score: 0.0,
            kind: Some(match unknown == Some(text.as_str()) {
                true => TokenKind::Unknown,
                false => TokenKind::Control,
            }),
        };
        self.pieces.splice(..replaced, leading.iter().map(token));
        // The ids refer to pieces that were replaced.
        self.roles.iter_mut().for_each(|(_, id)| *id = -1);
        Ok(())
    }

    fn add_piece(&mut self, message: &[u8]) -> Option<()> {
        let mut piece = Piece {
            kind: Some(TokenKind::Normal),
            ..Piece::default()
        };
        let mut fields = MessageFields::new(message);
        while let Some((field, value)) = fields.next() {
            match (field, value) {
                (1, FieldValue::Bytes(text)) => {
                    piece.text = String::from_utf8(text.to_vec()).ok()?
                }
                (2, FieldValue::Bits(bits)) => piece.score = f32::from_bits(bits),
                // The codes are those of GGUF files.
                (3, FieldValue::Number(code)) => {
                    piece.kind = TokenKind::known(i64::try_from(code).ok()?)
                }
                (1..=3, _) => return None,
                _ => {}
            }
        }
        self.pieces.push(piece);
        (!fields.broken).then_some(())
    }

    fn read_trainer(&mut self, files: &FolderFiles, message: &[u8]) -> Result<Option<()>, Error> {
        let mut fields = MessageFields::new(message);
        while let Some((field, value)) = fields.next() {
            let FieldValue::Number(number) = value else {
                continue;
            };
            match field {
                3 => {
                    self.algorithm = match number {
                        1 => PieceAlgorithm::Unigram,
                        2 | 4 => PieceAlgorithm::Pairs,
                        other => {
                            let what = format!(
                                "model type {other}, expected 1 (unigram), 2 (BPE) or 4 (characters)"
                            );
                            return Err(files.damaged(what));
                        }
                    }
                }
                24 => self.space_is_last = number != 0,
                35 => self.byte_fallback = number != 0,
                // Negative numbers are encoded as 64 bits.
                41..=43 => self.roles[field as usize - 41].1 = number as i32,
                _ => {}
            }
        }
        Ok((!fields.broken).then_some(()))
    }

    fn read_normaliser(&mut self, message: &[u8]) -> Option<()> {
        let mut fields = MessageFields::new(message);
        while let Some((field, value)) = fields.next() {
            match (field, value) {
                (2, FieldValue::Bytes(table)) => self.normaliser.table = table.to_vec(),
                (3, FieldValue::Number(flag)) => self.normaliser.adds_space = flag != 0,
                (4, FieldValue::Number(flag)) => self.normaliser.merges_spaces = flag != 0,
                (5, FieldValue::Number(flag)) => self.normaliser.escapes_spaces = flag != 0,
                (2..=5, _) => return None,
                _ => {}
            }
        }
        (!fields.broken).then_some(())
    }

    /// Checks SentencePiece's requirements of a model.
    fn check(&self) -> Result<(), String> {
        if !self.normaliser.escapes_spaces {
            return Err(
                "`escape_whitespaces` is off: tokens spell spaces as such, which is not supported"
                    .to_owned(),
            );
        }
        let mut known = FxHashSet::default();
        let (mut unknown, mut bytes) = (None, [false; 256]);
        for (id, piece) in self.pieces.iter().enumerate() {
            let text = &piece.text;
            let Some(kind) = piece.kind else {
                return Err(format!("piece {id} (`{text}`) has an unknown piece type"));
            };
            if text.is_empty() {
                return Err(format!("piece {id} is empty"));
            }
            // Tokens that occur in no text may share names with those that do.
            let is_text = matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            );
            if !known.insert((is_text, text.as_str())) {
                return Err(format!("piece {id}: `{text}` is already defined"));
            }
            match (kind, named_byte(text.as_bytes())) {
                (TokenKind::Unknown, _) => {
                    if let Some(other) = unknown.replace(id) {
                        return Err(format!(
                            "pieces {other} and {id} are both unknown pieces, expected one"
                        ));
                    }
                }
                (TokenKind::Byte, None) => {
                    return Err(format!("piece {id}: `{text}` is not a byte"));
                }
                (TokenKind::Byte, Some(_)) if !self.byte_fallback => {
                    return Err(format!("piece {id} is a byte, and `byte_fallback` is off"));
                }
                (TokenKind::Byte, Some(byte)) => bytes[usize::from(byte)] = true,
                _ => {}
            }
        }
        if unknown.is_none() && !self.byte_fallback {
            return Err("there is no unknown piece, and `byte_fallback` is off".to_owned());
        }
        match bytes.iter().position(|found| !found) {
            Some(byte) if self.byte_fallback => Err(format!(
                "`byte_fallback` is on, and there is no piece for byte {byte:#04x}"
            )),
            _ => Ok(()),
        }
    }
}

impl<'a> MessageFields<'a> {
    const fn new(message: &'a [u8]) -> Self {
        Self {
            rest: message,
            broken: false,
        }
    }

    /// Number and value of the next field; `None` at the end or if the message is malformed.
    fn next(&mut self) -> Option<(u64, FieldValue<'a>)> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        self.broken = field.is_none();
        field
    }

    fn read(&mut self) -> Option<(u64, FieldValue<'a>)> {
        let mut rest = self.rest;
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => FieldValue::Number(varint(&mut rest)?),
            1 => {
                rest = rest.get(8..)?;
                FieldValue::Other
            }
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                let (bytes, after) = rest.split_at_checked(len)?;
                rest = after;
                FieldValue::Bytes(bytes)
            }
            5 => {
                let (bits, after) = rest.split_first_chunk::<4>()?;
                rest = after;
                FieldValue::Bits(u32::from_le_bytes(*bits))
            }
            _ => return None,
        };
        self.rest = rest;
        Some((tag >> 3, value))
    }
}

/// A variable-length integer: seven bits per byte, lowest first; the highest bit says that more bytes follow.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
