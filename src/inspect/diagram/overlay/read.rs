//! The numbers of a file, with the values and units that they belong to, and how files are read: profiles, comparisons,
//! drift reports, and plain objects of paths.
//!
//! Files are untrusted: the caller limits their size, the parser limits their depth, and repeated keys and NaN are
//! errors. Messages name the line, what was expected and what was found.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use lab_core::models::abbreviated;

/// The numbers that are shown on a drawing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    /// The measured quantity: `time of prefill 128 tokens`.
    pub quantity: String,
    pub rule: Aggregation,
    /// The numbers. Each has at most [`LARGEST`] as its absolute value, or is infinite if it is an error that the file
    /// has as null.
    pub numbers: Vec<Measurement>,
    /// The model that the file names, if any.
    pub of: Option<String>,
    pub first: Option<FirstDifference>,
    /// Seconds of a whole pass, in a profile.
    pub whole: Option<f64>,
}

/// The rule by which several numbers are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// The numbers are seconds and are added.
    Time,
    /// The largest number is used.
    #[default]
    Largest,
}

/// The largest absolute value of a number that is shown.
pub const LARGEST: f64 = 1e300;

/// A number, and the value or unit that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The path of a value, a unit, a slot or a layer.
    pub path: String,
    /// The operation of the unit at the path, if the number belongs to one.
    pub op: Option<MeasuredOp>,
    /// Seconds, or the quantity of the file.
    pub value: f64,
}

/// An operation of a use of a unit. [`lab_base::ggml::GraphOp`] has the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredOp {
    pub kind: String,
    /// The number of the use, among those of the same kind and path.
    pub nth: u64,
    /// The index of the operation in the use, without operations that only describe memory.
    pub at: usize,
    /// The names of all operations of the use; the list is shared by them.
    pub all: Rc<[String]>,
}

/// The error of a file without numbers, or whose numbers cannot be shown: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OverlayError(pub(super) String);

/// The first value that differs, in a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstDifference {
    pub path: String,
    /// The NMSE above which values count as different.
    pub tolerance: Option<f64>,
}

impl From<serde_json::Error> for OverlayError {
    fn from(error: serde_json::Error) -> Self {
        Self(short(&error.to_string()))
    }
}

/// A report of `bench perf --profile --json`.
#[derive(Deserialize)]
struct PerfReport {
    model: Option<String>,
    runs: Vec<PerfRun>,
}

#[derive(Deserialize)]
struct PerfRun {
    #[serde(default)]
    threads: u64,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    what: String,
    seconds_per_pass: Option<f64>,
    places: Vec<UnitUse>,
}

#[derive(Deserialize)]
struct UnitUse {
    kind: String,
    path: String,
    #[serde(rename = "use")]
    nth: u64,
    operations: Vec<TimedOp>,
}

#[derive(Deserialize)]
struct TimedOp {
    name: String,
    seconds: f64,
}

/// A report of `bench compare --json` or of `bench lab drift --json`.
#[derive(Deserialize)]
struct ValueReport {
    #[serde(alias = "layers")]
    values: Vec<ReportValue>,
    first_divergence: Option<String>,
    tolerance: Option<f64>,
}

/// A value, or a layer. JSON has no infinity: an infinite error, such as that of a value with NaN, is null.
#[derive(Deserialize)]
struct ReportValue {
    path: String,
    nmse: Option<f64>,
    rms_a: Option<f64>,
    rms_b: Option<f64>,
    own_nmse: Option<f64>,
}

/// A quantity of a report: its name, its title in the legend, and its number; a value may have none.
type Quantity = (&'static str, &'static str, fn(&ReportValue) -> Option<f64>);

const COMPARED: [Quantity; 3] = [
    ("error", "error (NMSE)", error),
    ("norm of A", "norm of A (root mean square)", |v| {
        v.rms_a.or(Some(f64::NAN))
    }),
    ("norm of B", "norm of B (root mean square)", |v| {
        v.rms_b.or(Some(f64::NAN))
    }),
];

/// A layer whose input cannot be set has no error of its own.
const DRIFTED: [Quantity; 2] = [
    ("error", "error of the hidden state (NMSE)", error),
    (
        "own error",
        "own error of the layer, given the input of A (NMSE)",
        |v| v.own_nmse,
    ),
];

fn error(value: &ReportValue) -> Option<f64> {
    value.nmse.or(Some(f64::INFINITY))
}

/// A report of `bench plan --json`: the device number of each part.
#[derive(Deserialize)]
struct PlanReport {
    placement: Placement,
}

#[derive(Deserialize)]
struct Placement {
    quantity: String,
    parts: NumbersByPath,
}

/// An object of paths with numbers, in the order of the file.
struct NumbersByPath(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for NumbersByPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = NumbersByPath;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of paths with numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NumbersByPath, A::Error> {
                let mut seen = std::collections::HashSet::new();
                let mut all = Vec::new();
                while let Some((path, value)) = map.next_entry::<String, f64>()? {
                    if !seen.insert(path.clone()) {
                        return Err(A::Error::custom(format!("found `{}` twice", short(&path))));
                    }
                    all.push((path, value));
                }
                Ok(NumbersByPath(all))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl Overlay {
    /// Reads the numbers of `quantity` from a file, or of its first quantity. For an object of paths, `quantity` is
    /// only the title in the legend.
    ///
    /// # Errors
    /// The file has another format, or lacks the quantity.
    pub fn read(bytes: &[u8], quantity: Option<&str>) -> Result<Self, OverlayError> {
        let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(bytes)?;
        let has = |key: &str| keys.contains_key(key);
        if has("runs") {
            return profile(serde_json::from_slice(bytes)?, quantity);
        }
        if has("logits_nmse") {
            let report = serde_json::from_slice(bytes)?;
            return comparison(report, &DRIFTED, "bench lab drift --json", quantity);
        }
        if has("values") {
            return comparison(serde_json::from_slice(bytes)?, &COMPARED, COMPARE, quantity);
        }
        let (name, NumbersByPath(paths)) = match has("placement") {
            true => {
                let PlanReport { placement: of } = serde_json::from_slice(bytes)?;
                (short(&of.quantity), of.parts)
            }
            false => ("value".to_owned(), serde_json::from_slice(bytes)?),
        };
        let numbers = paths.into_iter();
        let numbers = numbers.map(|(path, value)| number(path, None, value));
        let numbers = numbers.collect::<Result<_, _>>()?;
        Ok(Self {
            quantity: quantity.map_or(name, str::to_owned),
            numbers: non_empty(numbers, COMPARE, "without numbers")?,
            ..Self::default()
        })
    }
}

/// The command whose reports hold values.
const COMPARE: &str = "bench compare --json";

fn non_empty<T>(list: Vec<T>, expected: &str, found: &str) -> Result<Vec<T>, OverlayError> {
    if list.is_empty() {
        let text = format!("expected a report of `{expected}`, found one {found}");
        return Err(OverlayError(text));
    }
    Ok(list)
}

fn number(path: String, op: Option<MeasuredOp>, value: f64) -> Result<Measurement, OverlayError> {
    let expected = match &op {
        Some(_) if value < 0.0 => "a time that is not negative".to_owned(),
        _ if value.abs() <= LARGEST || value == f64::INFINITY => {
            return Ok(Measurement { path, op, value });
        }
        _ => format!("a number of at most {LARGEST:e}"),
    };
    let text = format!("at `{}`: expected {expected}, found {value}", short(&path));
    Err(OverlayError(text))
}

/// The index of the requested name in the list; 0 without a request.
fn choose(names: &[String], asked: Option<&str>) -> Result<usize, OverlayError> {
    let Some(asked) = asked else { return Ok(0) };
    names.iter().position(|name| name == asked).ok_or_else(|| {
        let known = names.iter().map(|name| format!("`{}`", short(name)));
        let known = abbreviated(&known.collect::<Vec<_>>());
        let text = format!("expected a quantity of the file ({known}), found `{asked}`");
        OverlayError(text)
    })
}

fn profile(report: PerfReport, quantity: Option<&str>) -> Result<Overlay, OverlayError> {
    let expected = "bench perf --profile --json";
    let is_one = report.runs.len() == 1;
    let profiles = report.runs.into_iter().flat_map(|run| {
        let threads = (!is_one).then(|| format!(", {} threads", run.threads));
        let threads = threads.unwrap_or_default();
        let named = move |profile: Profile| (format!("time of {}{threads}", profile.what), profile);
        run.profiles.into_iter().map(named)
    });
    let found = "of `bench perf --json`, which has no profiles";
    let profiles = non_empty(profiles.collect(), expected, found)?;
    let (names, mut profiles): (Vec<String>, Vec<Profile>) = profiles.into_iter().unzip();
    let at = choose(&names, quantity)?;
    let mut numbers = Vec::new();
    let chosen = profiles.swap_remove(at);
    let whole = chosen
        .seconds_per_pass
        .filter(|s| (0.0..=LARGEST).contains(s));
    for place in chosen.places {
        let all: Rc<[String]> = place.operations.iter().map(|op| op.name.clone()).collect();
        for (at, op) in place.operations.iter().enumerate() {
            let of = MeasuredOp {
                kind: place.kind.clone(),
                nth: place.nth,
                at,
                all: all.clone(),
            };
            numbers.push(number(place.path.clone(), Some(of), op.seconds)?);
        }
    }
    Ok(Overlay {
        quantity: short(&names[at]),
        rule: Aggregation::Time,
        numbers: non_empty(numbers, expected, "without operations")?,
        of: report.model,
        first: None,
        whole,
    })
}

fn comparison(
    report: ValueReport,
    quantities: &[Quantity],
    command: &str,
    quantity: Option<&str>,
) -> Result<Overlay, OverlayError> {
    let names: Vec<String> = quantities.iter().map(|(name, ..)| (*name).into()).collect();
    let (_, title, of) = quantities[choose(&names, quantity)?];
    let values = report.values.into_iter();
    let values = values.filter_map(|value| Some((of(&value)?, value.path)));
    let numbers = values.map(|(value, path)| number(path, None, value));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let path = report.first_divergence;
    let is_known = |path: &String| numbers.iter().any(|n| n.path == *path);
    if let Some(path) = path.as_ref().filter(|path| !is_known(path)) {
        let (expected, found) = ("the first divergence to be one of the values", short(path));
        return Err(OverlayError(format!(
            "expected {expected}, found `{found}`"
        )));
    }
    let tolerance = report.tolerance;
    Ok(Overlay {
        quantity: title.to_owned(),
        first: path.map(|path| FirstDifference { path, tolerance }),
        numbers: non_empty(numbers, command, "without such values")?,
        ..Overlay::default()
    })
}

/// Text of the file in a message, shortened: a file may be one very long word.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}
