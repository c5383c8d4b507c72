//! Classes without a map, and the features that each of them needs: `stmaps/missing.toml`.

use serde::Deserialize;

const LIST: &str = include_str!("../../stmaps/missing.toml");

/// The features that several classes need.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// The missing features, as the object of "needs".
    pub what: String,
    /// Names in `architectures` of a configuration.
    pub classes: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    needs: Vec<Need>,
}

/// The whole list, in its order.
///
/// # Errors
/// The list is malformed.
pub fn missing() -> Result<Vec<Need>, String> {
    let list: List = toml::from_str(LIST).map_err(|error| error.to_string())?;
    Ok(list.needs)
}

/// The features that the first listed one of these classes needs.
pub(super) fn need_of(classes: &[&str]) -> Option<String> {
    let needs = missing().unwrap_or_default();
    let mut found = needs.into_iter().filter(|need| {
        let mut own = need.classes.iter();
        own.any(|class| classes.contains(&class.as_str()))
    });
    found.next().map(|need| need.what)
}
