//! The data of a page as JSON inside the page: the parts of the drawing, with amounts in words.

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::inspect::diagram::{Cost, Drawing, Kept, Note, Part, svg};

/// The parts with their operations and weights as JSON, without characters that are special in markup. Properties of a
/// kind of layers are in its picture instead.
pub(super) fn data(drawing: &Drawing) -> String {
    let value = json!({
        "name": drawing.name,
        "symbolic": drawing.is_symbolic,
        "measured": drawing.overlay.as_ref().map(|legend| &legend.title),
        "parts": drawing.parts().collect::<Vec<&Part>>(),
    });
    let known = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    known.into_iter().fold(value.to_string(), |text, c| {
        text.replace(c, &format!("\\u{:04x}", c as u32))
    })
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&svg::cost_text(self))
    }
}

impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq([self.text.clone(), self.amounts()].concat())
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.sentence())
    }
}
