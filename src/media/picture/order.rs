//! The order of a view's values: a permutation of axes, as einops writes it.

use serde::Deserialize;

/// The axes of a view, those of `NAMES`.
pub(super) const AXES: usize = 8;

/// Names of the axes: channel, frame, row and column of a block of patches, of a patch in its block, and of a pixel in its patch.
pub(super) const NAMES: [&str; AXES] = ["c", "t", "Y", "X", "y", "x", "i", "j"];

/// The order of the axes, in groups, each of which is one dimension: `(Y X y x) (c t i j)`. An axis that is not named has one element.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Order(pub(super) Vec<Vec<usize>>);

impl TryFrom<String> for Order {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refuse = || {
            let names = NAMES.join(", ");
            format!("`{text}`: expected each of {names} at most once, with groups in parentheses")
        };
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let (mut groups, mut open): (Vec<Vec<usize>>, Option<Vec<usize>>) = (Vec::new(), None);
        let mut used = [false; AXES];
        for word in spaced.split_whitespace() {
            match (word, &mut open) {
                ("(", None) => open = Some(Vec::new()),
                (")", Some(group)) => {
                    groups.push(std::mem::take(group));
                    open = None;
                }
                (name, group) => {
                    let axis = NAMES.iter().position(|axis| *axis == name);
                    let axis = axis.filter(|axis| !used[*axis]).ok_or_else(refuse)?;
                    used[axis] = true;
                    match group {
                        Some(group) => group.push(axis),
                        None => groups.push(vec![axis]),
                    }
                }
            }
        }
        match open.is_none() && !groups.is_empty() {
            true => Ok(Self(groups)),
            false => Err(refuse()),
        }
    }
}
