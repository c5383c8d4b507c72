//! What a side does, for pictures and lists alike.

use crate::diagram::PartOption;

use super::Wiring;
use super::phrases::{about, predicate, present};

/// What a choice means, with its value where the words do not say it.
pub(in crate::diagram) fn choice_words(option: &PartOption) -> String {
    if option.is_open {
        return format!(
            "{}: what the file says, {}",
            about(option.doc),
            option.value
        );
    }
    match (predicate(option), option.is_number && !option.is_off) {
        (Some(words), _) => words.to_owned(),
        (None, true) if is_whole(option) => present(option),
        (None, true) if !about(option.doc).is_empty() => {
            format!("{}: {}", about(option.doc), option.value)
        }
        (None, true) => present(option),
        (None, false) => format!("{} = {}: {}", option.name, option.value, about(option.doc)),
    }
}

/// Whether what is there says what the number is of.
fn is_whole(option: &PartOption) -> bool {
    ["cache.size", "cache.alibi"].contains(&option.name.as_str())
}

/// What a side's wiring does.
pub(in crate::diagram) fn gives(what: Wiring, text: &str) -> String {
    match (what, text.is_empty()) {
        (Wiring::Input, _) => format!("reads {text}"),
        (Wiring::Join, _) => format!("gives what {text}"),
        (Wiring::Beside, true) => "reads what the block before it left".into(),
        (Wiring::Beside, false) => format!("reads the same as the {text}, beside it"),
        (_, true) => String::new(),
        (Wiring::Side, _) => format!("reads besides {text}"),
        (Wiring::Factor, _) => format!("multiplies the result by {text}"),
        (Wiring::Saved, _) => format!("saves the result as {text}"),
    }
}
