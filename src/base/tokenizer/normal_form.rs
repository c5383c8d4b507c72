//! The Unicode normal form of a vocabulary's texts (Unicode Standard Annex 15).
//!
//! Special tokens are split off first. Invariant: a text that already has the form is not copied.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization};
use unicode_normalization::{is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick};

use crate::weights::Metadata;

use super::{Error, keys};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormalForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

pub(super) fn read(metadata: &Metadata) -> Result<Option<NormalForm>, Error> {
    Ok(match metadata.str(keys::NORMAL_FORM) {
        None => None,
        Some("nfc") => Some(NormalForm::Nfc),
        Some("nfd") => Some(NormalForm::Nfd),
        Some("nfkc") => Some(NormalForm::Nfkc),
        Some("nfkd") => Some(NormalForm::Nfkd),
        Some(other) => return Err(Error::UnknownForm(other.to_owned())),
    })
}

impl NormalForm {
    pub(super) fn of(self, text: &str) -> Cow<'_, str> {
        if text.is_ascii() {
            return text.into();
        }
        let chars = text.chars();
        let has_form = match self {
            Self::Nfc => is_nfc_quick(chars),
            Self::Nfd => is_nfd_quick(chars),
            Self::Nfkc => is_nfkc_quick(chars),
            Self::Nfkd => is_nfkd_quick(chars),
        };
        if has_form == IsNormalized::Yes {
            return text.into();
        }
        match self {
            Self::Nfc => text.nfc().collect(),
            Self::Nfd => text.nfd().collect(),
            Self::Nfkc => text.nfkc().collect(),
            Self::Nfkd => text.nfkd().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_take_the_form_and_keep_it() {
        let cases = [
            (NormalForm::Nfc, "\u{e9}\u{fb01}"),
            (NormalForm::Nfd, "e\u{301}\u{fb01}"),
            (NormalForm::Nfkc, "\u{e9}fi"),
            (NormalForm::Nfkd, "e\u{301}fi"),
        ];
        for (form, expected) in cases {
            assert_eq!(form.of("e\u{301}\u{fb01}"), expected, "{form:?}");
            assert_eq!(form.of("\u{e9}\u{fb01}"), expected, "{form:?}");
            assert!(matches!(form.of(expected), Cow::Borrowed(_)), "{form:?}");
            assert!(matches!(form.of("plain"), Cow::Borrowed(_)), "{form:?}");
        }
    }
}
