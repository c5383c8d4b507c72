//! Files of numbers: profiles, comparisons, and plain objects of paths.
//!
//! A file is anything: its size is the caller's to bound, its depth is bounded by the parser, a key that
//! comes twice is an error, and so is a number that is none. Problems name the place, what was expected
//! and what was found.

use std::fmt;
use std::rc::Rc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{First, LARGEST, Number, Overlay, Rule, Spot};

/// Why a file is none of numbers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No JSON, or a key twice.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Something else than belongs there.
    #[error("at `{place}`: expected {expected}, found {found}")]
    Other {
        /// Keys and indices on the way, with dots between.
        place: String,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A report of the program without numbers of values.
    #[error("expected a report of `{expected}`, found one of `{found}`, which has {lack}")]
    Report {
        /// The command whose report can be shown.
        expected: &'static str,
        /// The command whose report it is.
        found: &'static str,
        /// What is not in it.
        lack: &'static str,
    },
    /// A quantity that the file has not.
    #[error("expected a quantity of the file ({known}), found `{asked}`")]
    Quantity {
        /// What was asked for.
        asked: String,
        /// What there is.
        known: String,
    },
}

impl Overlay {
    /// The numbers of `quantity` in a file, or of the first one that it has. Of an object of paths the
    /// quantity is what the legend calls it.
    ///
    /// # Errors
    /// A file of another format, or one without the quantity.
    pub fn read(bytes: &[u8], quantity: Option<&str>) -> Result<Self, Error> {
        let Unique(value) = serde_json::from_slice(bytes)?;
        let root = At::new(&value);
        let object = root.object()?;
        let has = |key: &str, is: fn(&Value) -> bool| object.get(key).is_some_and(is);
        if has("runs", Value::is_array) {
            return profile(&root, quantity);
        }
        if has("values", Value::is_array) {
            return comparison(&root, quantity);
        }
        if has("positions", Value::is_u64) && has("same_top", Value::is_u64) {
            return Err(Error::Report {
                expected: "bench compare --json",
                found: "bench compare --kl --json",
                lack: "no numbers of values",
            });
        }
        let number = |(path, _): (&String, _)| {
            Ok(Number {
                value: root.key(path)?.number()?,
                spot: Spot::Path(path.clone()),
            })
        };
        let numbers: Vec<Number> = object.iter().map(number).collect::<Result<_, Error>>()?;
        if numbers.is_empty() {
            return Err(root.other("paths with numbers"));
        }
        Ok(Self {
            quantity: quantity.unwrap_or("value").to_owned(),
            rule: Rule::Largest,
            numbers,
            of: None,
            first: None,
        })
    }
}

/// The place in the list of names that is asked for; the first one if none is.
fn choose(names: &[String], asked: Option<&str>) -> Result<usize, Error> {
    let Some(asked) = asked else { return Ok(0) };
    let at = names.iter().position(|name| name == asked);
    at.ok_or_else(|| Error::Quantity {
        asked: asked.to_owned(),
        known: listed(names),
    })
}

/// The first of some names of the file as part of a message.
fn listed(names: &[String]) -> String {
    const MOST: usize = 12;
    let shown = names.iter().take(MOST);
    let mut shown: Vec<String> = shown.map(|name| format!("`{}`", short(name))).collect();
    if names.len() > MOST {
        shown.push("\u{2026}".into());
    }
    shown.join(", ")
}

/// One of the profiles of a report of `bench perf --profile --json`.
fn profile(root: &At<'_>, quantity: Option<&str>) -> Result<Overlay, Error> {
    let runs = root.key("runs")?.list()?;
    let (mut names, mut profiles) = (Vec::new(), Vec::new());
    for run in &runs {
        for profile in run.key("profiles")?.list()? {
            let what = profile.key("what")?.text()?;
            let threads = match runs.len() {
                1 => String::new(),
                _ => format!(", {} threads", run.key("threads")?.number()?),
            };
            names.push(format!("time of {what}{threads}"));
            profiles.push(profile);
        }
    }
    if profiles.is_empty() && runs.is_empty() {
        return Err(root
            .key("runs")?
            .other("profiles (bench perf --profile --json)"));
    }
    if profiles.is_empty() {
        return Err(Error::Report {
            expected: "bench perf --profile --json",
            found: "bench perf --json",
            lack: "no profiles",
        });
    }
    let at = choose(&names, quantity)?;
    let mut numbers = Vec::new();
    for place in profiles[at].key("places")?.list()? {
        numbers.extend(times(&place)?);
    }
    if numbers.is_empty() {
        return Err(profiles[at].key("places")?.other("places with operations"));
    }
    Ok(Overlay {
        quantity: short(&names[at]),
        rule: Rule::Time,
        numbers,
        of: match root.object()?.get("model") {
            Some(_) => Some(root.key("model")?.text()?.to_owned()),
            None => None,
        },
        first: None,
    })
}

/// The seconds of each operation of a place.
fn times(place: &At<'_>) -> Result<Vec<Number>, Error> {
    let (kind, path) = (place.key("kind")?.text()?, place.key("path")?.text()?);
    let nth = place.key("use")?;
    let nth = nth.value.as_u64().ok_or_else(|| nth.other("a count"))?;
    let ops = place.key("operations")?.list()?;
    let names = ops.iter().map(|op| Ok(op.key("name")?.text()?.to_owned()));
    let all: Rc<[String]> = names.collect::<Result<Vec<_>, Error>>()?.into();
    let number = |(at, op): (usize, &At<'_>)| {
        let seconds = op.key("seconds")?;
        let value = seconds.number()?;
        if value < 0.0 {
            return Err(seconds.other("a time that is not negative"));
        }
        let spot = Spot::Operation {
            kind: kind.to_owned(),
            path: path.to_owned(),
            nth,
            at,
            all: all.clone(),
        };
        Ok(Number { spot, value })
    };
    ops.iter().enumerate().map(number).collect()
}

/// Quantities of a comparison: what they are called, in the legend as well, the key, and whether null
/// stands for the infinite.
const COMPARED: [(&str, &str, &str, bool); 3] = [
    ("error", "error (NMSE)", "nmse", true),
    ("norm of A", "norm of A (root mean square)", "rms_a", false),
    ("norm of B", "norm of B (root mean square)", "rms_b", false),
];

/// The report of `bench compare --json`.
fn comparison(root: &At<'_>, quantity: Option<&str>) -> Result<Overlay, Error> {
    let names = COMPARED.map(|(name, ..)| name.to_owned());
    let (_, title, key, has_infinite) = COMPARED[choose(&names, quantity)?];
    let mut numbers = Vec::new();
    for value in root.key("values")?.list()? {
        let path = value.key("path")?.text()?.to_owned();
        let number = value.key(key)?;
        numbers.push(Number {
            spot: Spot::Path(path),
            value: match number.value {
                Value::Null if has_infinite => f64::INFINITY,
                _ => number.number()?,
            },
        });
    }
    if numbers.is_empty() {
        return Err(root.key("values")?.other("compared values"));
    }
    Ok(Overlay {
        quantity: title.to_owned(),
        rule: Rule::Largest,
        first: first(root, &numbers)?,
        numbers,
        of: None,
    })
}

/// The first value that differs, which must be one of the values.
fn first(root: &At<'_>, numbers: &[Number]) -> Result<Option<First>, Error> {
    let said = root.key("first_divergence")?;
    if said.value.is_null() {
        return Ok(None);
    }
    let path = said.text()?;
    if !numbers.iter().any(|number| number.spot.path() == path) {
        return Err(said.other("the path of one of the values"));
    }
    let tolerance = match root.object()?.get("tolerance") {
        Some(_) => Some(root.key("tolerance")?.number()?),
        None => None,
    };
    Ok(Some(First {
        path: path.to_owned(),
        tolerance,
    }))
}

/// A place in a file.
struct At<'v> {
    value: &'v Value,
    place: String,
}

impl<'v> At<'v> {
    fn new(value: &'v Value) -> Self {
        let place = String::new();
        Self { value, place }
    }

    fn within(&self, key: &str, value: &'v Value) -> Self {
        let place = match self.place.is_empty() {
            true => short(key),
            false => format!("{}.{}", self.place, short(key)),
        };
        Self { value, place }
    }

    fn object(&self) -> Result<&'v Map<String, Value>, Error> {
        let expected = match self.place.is_empty() {
            true => "a report of perf or compare, or an object of paths with numbers",
            false => "an object",
        };
        self.value.as_object().ok_or_else(|| self.other(expected))
    }

    fn key(&self, key: &str) -> Result<Self, Error> {
        let value = self.object()?.get(key);
        let value = value.ok_or_else(|| self.other(&format!("an object with `{key}`")))?;
        Ok(self.within(key, value))
    }

    fn list(&self) -> Result<Vec<Self>, Error> {
        let list = self.value.as_array().ok_or_else(|| self.other("a list"))?;
        let places = list.iter().enumerate();
        Ok(places
            .map(|(at, value)| self.within(&at.to_string(), value))
            .collect())
    }

    fn text(&self) -> Result<&'v str, Error> {
        self.value.as_str().ok_or_else(|| self.other("a text"))
    }

    fn number(&self) -> Result<f64, Error> {
        let number = self.value.as_f64().filter(|n| n.abs() <= LARGEST);
        number.ok_or_else(|| self.other(&format!("a number of at most {LARGEST:e}")))
    }

    fn other(&self, expected: &str) -> Error {
        Error::Other {
            place: match self.place.is_empty() {
                true => ".".into(),
                false => self.place.clone(),
            },
            expected: expected.to_owned(),
            found: match self.value {
                Value::Null => "null".into(),
                Value::Bool(value) => value.to_string(),
                Value::Number(number) => short(&number.to_string()),
                Value::String(text) => format!("`{}`", short(text)),
                Value::Array(list) => format!("a list of {}", list.len()),
                Value::Object(object) => format!("an object of {}", object.len()),
            },
        }
    }
}

/// A text of the file as it is shown: a file is long, and may be one word.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

/// A value in which no object has a key twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(value)) = seq.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                let problem = format!("expected each key once, found `{}` twice", short(&key));
                return Err(de::Error::custom(problem));
            }
            let Unique(value) = map.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
