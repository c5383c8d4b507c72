//! Classes without a map, and the features that each of them needs: `stmaps/missing.toml`.

use serde::Deserialize;

const LIST: &str = include_str!("../../../stmaps/missing.toml");

/// The features that several classes need.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissingFeature {
    /// The missing features, as the object of "needs".
    pub what: String,
    /// Names in `architectures` of a configuration.
    pub classes: Vec<String>,
}

#[derive(Deserialize)]
struct MissingList {
    needs: Vec<MissingFeature>,
}

/// The whole list, in its order.
pub fn missing() -> Result<Vec<MissingFeature>, String> {
    let list: MissingList = toml::from_str(LIST).map_err(|error| error.to_string())?;
    Ok(list.needs)
}

/// The features that the first of these classes needs which the list has.
pub(super) fn missing_feature_of(classes: &[String]) -> Option<String> {
    let needs = missing().unwrap_or_default();
    let need = |class| needs.iter().find(|need| need.classes.contains(class));
    let found = classes.iter().find_map(need);
    found.map(|need| need.what.clone())
}
