//! Reading of a JSON Schema: each schema once, its keywords to alternatives, with the place of what is wrong.
//!
//! What cannot be enforced is an error. Keywords that no draft of JSON Schema knows are annotations, as the
//! specification says. Not here: values within values, which are read when something asks for them ([`Schemas::shape`]).

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::Error;
use super::format;
use super::number::{Bound, Decimal, Number};
use super::resources::Resources;
use super::shape::{Alternative, Array, Kind, Node, Object, Part, Shape, any, meet};
use super::text::{Pattern, Text};

/// Keywords of the specification that are not enforced.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Keywords that exclude values of a type, `type` aside.
const CONDITIONS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Maximum number of properties of an object: the library's work grows with its square.
const MAX_PROPERTIES: usize = 1000;
/// Maximum number of parts. A schema counts as one, and so do eight values of an enumeration.
const MAX_PARTS: usize = 1 << 14;
/// Maximum number of alternatives of a schema.
const MAX_ALTERNATIVES: usize = 1 << 15;
/// Maximum nesting of schemas that the same value has to fit: each level is a recursive call.
const MAX_DEPTH: usize = 512;
/// A count above it is never reached.
const ENDLESS: u64 = 1_000_000_000;

static FALSE: Value = Value::Bool(false);

/// A schema, or a value that is the only one that fits.
struct Source<'a> {
    value: &'a Value,
    base: usize,
    at: Rc<str>,
    is_constant: bool,
}

/// The schemas of a document that were reached so far.
pub(super) struct Schemas<'a> {
    resources: Resources<'a>,
    sources: Vec<Source<'a>>,
    numbers: HashMap<(*const Value, bool), u32>,
    read: HashMap<u32, Rc<Shape>>,
    /// Schemas that are being read.
    open: HashSet<u32>,
    /// The places of `oneOf`.
    pub(super) groups: Vec<Rc<str>>,
    patterns: HashMap<String, Rc<Pattern>>,
    n_parts: usize,
}

pub(super) fn fault(at: &str, message: impl Into<String>) -> Error {
    Error::Schema {
        at: at.to_owned(),
        message: message.into(),
    }
}

/// A key as part of a JSON pointer (RFC 6901, section 3).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl<'a> Schemas<'a> {
    /// The schemas of a document, and the number of the outermost one.
    pub(super) fn new(root: &'a Value) -> (Self, u32) {
        let mut this = Self {
            resources: Resources::new(root),
            sources: Vec::new(),
            numbers: HashMap::new(),
            read: HashMap::new(),
            open: HashSet::new(),
            groups: Vec::new(),
            patterns: HashMap::new(),
            n_parts: 0,
        };
        let source = Source {
            value: root,
            base: this.resources.base_of(root, 0),
            at: "".into(),
            is_constant: false,
        };
        let root = this.add(source);
        (this, root)
    }

    pub(super) fn place(&self, number: u32) -> &str {
        &self.sources[number as usize].at
    }

    fn add(&mut self, source: Source<'a>) -> u32 {
        let next = self.sources.len() as u32;
        let key = (std::ptr::from_ref(source.value), source.is_constant);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.sources.push(source);
        }
        number
    }

    /// Adds `n` to the count of parts.
    fn count(&mut self, at: &str, n: usize) -> Result<(), Error> {
        self.n_parts += n;
        match self.n_parts > MAX_PARTS {
            true => Err(fault(
                at,
                format!("the schema has more than {MAX_PARTS} parts"),
            )),
            false => Ok(()),
        }
    }

    /// The number of a schema below another one.
    fn inner(&mut self, value: &'a Value, base: usize, at: String) -> Result<u32, Error> {
        let base = self.resources.base_of(value, base);
        let n_known = self.sources.len();
        let number = self.add(Source {
            value,
            base,
            at: at.as_str().into(),
            is_constant: false,
        });
        if self.sources.len() > n_known {
            self.count(&at, 1)?;
            if !value.is_object() && !value.is_boolean() {
                return Err(fault(&at, "expected an object or a boolean"));
            }
        }
        Ok(number)
    }

    /// The alternatives of a schema.
    ///
    /// # Errors
    /// A keyword is wrong or cannot be enforced, or there are too many combinations.
    pub(super) fn shape(&mut self, number: u32) -> Result<Rc<Shape>, Error> {
        if let Some(shape) = self.read.get(&number) {
            return Ok(Rc::clone(shape));
        }
        let source = &self.sources[number as usize];
        let (value, base, at) = (source.value, source.base, Rc::clone(&source.at));
        if source.is_constant {
            let shape = Rc::new(vec![Alternative::of(self.constant(value, &at)?)]);
            self.read.insert(number, Rc::clone(&shape));
            return Ok(shape);
        }
        if self.open.len() == MAX_DEPTH {
            return Err(fault(
                &at,
                format!("more than {MAX_DEPTH} schemas in each other"),
            ));
        }
        if !self.open.insert(number) {
            return Err(fault(&at, "the schema refers to itself for the same value"));
        }
        let shape = match value {
            Value::Bool(true) => any(),
            Value::Bool(false) => Vec::new(),
            Value::Object(fields) => self.object(fields, base, &at)?,
            _ => return Err(fault(&at, "expected an object or a boolean")),
        };
        self.open.remove(&number);
        let shape = Rc::new(shape);
        self.read.insert(number, Rc::clone(&shape));
        Ok(shape)
    }

    fn object(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Shape, Error> {
        let mut shape = any();
        let mut has_conditions = false;
        for (key, value) in fields {
            let here = || format!("{at}/{}", escaped(key));
            let next = match key.as_str() {
                key if UNSUPPORTED.contains(&key) => {
                    if is_without_effect(key, value, fields) {
                        continue;
                    }
                    return Err(fault(&here(), format!("`{key}` cannot be enforced")));
                }
                key if CONDITIONS.contains(&key) => {
                    if std::mem::replace(&mut has_conditions, true) {
                        continue;
                    }
                    self.conditions(fields, base, at)?
                }
                "$ref" => {
                    let Some(reference) = value.as_str() else {
                        return Err(fault(&here(), "expected a string"));
                    };
                    let found = self.resources.target(reference, base);
                    let ((target, base), at) = found.map_err(|message| fault(&here(), message))?;
                    let number = self.inner_of(target, base, at)?;
                    Shape::clone(&*self.shape(number)?)
                }
                "allOf" | "anyOf" | "oneOf" => self.combined(key, value, base, &here())?,
                "const" => vec![Alternative::of(self.constant(value, &here())?)],
                "enum" => {
                    let Some(values) = value.as_array() else {
                        return Err(fault(&here(), "expected an array"));
                    };
                    self.count(&here(), values.len() / 8)?;
                    let mut all = Vec::with_capacity(values.len());
                    for (i, value) in values.iter().enumerate() {
                        all.push(Alternative::of(
                            self.constant(value, &format!("{}/{i}", here()))?,
                        ));
                    }
                    all
                }
                _ => continue,
            };
            shape = self.meet(&shape, &next, at)?;
        }
        Ok(shape)
    }

    /// The number of the target of a reference, whose URI is known.
    fn inner_of(&mut self, value: &'a Value, base: usize, at: String) -> Result<u32, Error> {
        let key = (std::ptr::from_ref(value), false);
        match self.numbers.get(&key) {
            Some(number) => Ok(*number),
            None => self.inner(value, base, at),
        }
    }

    pub(super) fn meet(&self, a: &Shape, b: &Shape, at: &str) -> Result<Shape, Error> {
        let too_many = || {
            fault(
                at,
                format!("more than {MAX_ALTERNATIVES} combinations of options"),
            )
        };
        meet(a, b, MAX_ALTERNATIVES).ok_or_else(too_many)
    }

    fn combined(
        &mut self,
        key: &str,
        value: &'a Value,
        base: usize,
        at: &str,
    ) -> Result<Shape, Error> {
        let Some(all) = value.as_array() else {
            return Err(fault(at, "expected an array of schemas"));
        };
        let mut numbers = Vec::with_capacity(all.len());
        for (i, schema) in all.iter().enumerate() {
            numbers.push(self.inner(schema, base, format!("{at}/{i}"))?);
        }
        let mut shape = match key {
            "allOf" => any(),
            _ => Vec::new(),
        };
        let group = self.groups.len() as u32;
        if key == "oneOf" {
            self.groups.push(at.into());
        }
        for (i, number) in numbers.into_iter().enumerate() {
            let option = self.shape(number)?;
            if key == "allOf" {
                shape = self.meet(&shape, &option, at)?;
                continue;
            }
            let start = shape.len();
            shape.extend_from_slice(&option);
            if key == "oneOf" {
                let of_option = &mut shape[start..];
                of_option
                    .iter_mut()
                    .for_each(|way| way.options.push((group, i as u32)));
            }
            if shape.len() > MAX_ALTERNATIVES {
                return Err(fault(at, format!("more than {MAX_ALTERNATIVES} options")));
            }
        }
        Ok(shape)
    }

    /// The one value that a constant is.
    fn constant(&mut self, value: &'a Value, at: &str) -> Result<Kind, Error> {
        let mut inner = |value: &'a Value, at: String| {
            self.add(Source {
                value,
                base: 0,
                at: at.into(),
                is_constant: true,
            })
        };
        Ok(match value {
            Value::Null => Kind::Null,
            Value::Bool(value) => Kind::Bool(*value),
            Value::Number(_) => {
                Kind::Number(Number::constant(value).map_err(|message| fault(at, message))?)
            }
            Value::String(text) => Kind::Text(Text {
                constant: Some(text.as_str().into()),
                ..Text::default()
            }),
            Value::Array(all) => {
                let items = all.iter().enumerate();
                let prefix =
                    items.map(|(i, value)| Node::from([inner(value, format!("{at}/{i}"))]));
                Kind::Array(Array {
                    prefix: prefix.collect(),
                    items: Rc::new([]),
                    min: all.len() as u32,
                    max: Some(all.len() as u32),
                })
            }
            Value::Object(all) => {
                let each = all.iter().map(|(name, value)| {
                    let at = format!("{at}/{}", escaped(name));
                    (Rc::<str>::from(name.as_str()), inner(value, at))
                });
                let each: Vec<_> = each.collect();
                let names: Vec<_> = each.iter().map(|(name, _)| Rc::clone(name)).collect();
                Kind::Object(Object {
                    required: names.clone(),
                    parts: vec![Rc::new(Part {
                        names,
                        properties: each.into_iter().collect(),
                        patterns: Vec::new(),
                        additional: Some(self.nothing()),
                        declares: true,
                    })],
                    min: 0,
                    max: None,
                })
            }
        })
    }

    /// The number of the schema that nothing fits.
    pub(super) fn nothing(&mut self) -> u32 {
        self.add(Source {
            value: &FALSE,
            base: 0,
            at: "".into(),
            is_constant: false,
        })
    }

    /// The alternatives that `type` and the conditions on values of each type leave.
    fn conditions(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Shape, Error> {
        let mut shape = Vec::new();
        let types: Vec<&Value> = match fields.get("type") {
            None => {
                return self.typed(
                    &["null", "boolean", "number", "string", "array", "object"],
                    fields,
                    base,
                    at,
                );
            }
            Some(Value::Array(all)) => all.iter().collect(),
            Some(one) => vec![one],
        };
        for name in types {
            let known = [
                "null", "boolean", "integer", "number", "string", "array", "object",
            ];
            let found = known.iter().find(|known| name.as_str() == Some(**known));
            let Some(found) = found else {
                return Err(fault(&format!("{at}/type"), format!("{name} is no type")));
            };
            shape.extend(self.typed(&[found], fields, base, at)?);
        }
        Ok(shape)
    }

    fn typed(
        &mut self,
        types: &[&str],
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Shape, Error> {
        let mut shape = Vec::new();
        for name in types {
            let kind = match *name {
                "null" => Kind::Null,
                "boolean" => {
                    shape.push(Alternative::of(Kind::Bool(true)));
                    Kind::Bool(false)
                }
                "integer" | "number" => Kind::Number(numbers(fields, at, *name == "integer")?),
                "string" => Kind::Text(self.strings(fields, at)?),
                "array" => Kind::Array(self.arrays(fields, base, at)?),
                _ => Kind::Object(self.objects(fields, base, at)?),
            };
            shape.push(Alternative::of(kind));
        }
        Ok(shape)
    }

    fn pattern(&mut self, source: &str, at: &str) -> Result<Rc<Pattern>, Error> {
        if let Some(known) = self.patterns.get(source) {
            return Ok(Rc::clone(known));
        }
        let pattern = Pattern::of(source).map_err(|message| fault(at, message))?;
        self.patterns.insert(source.to_owned(), Rc::clone(&pattern));
        Ok(pattern)
    }

    fn strings(&mut self, fields: &'a Map<String, Value>, at: &str) -> Result<Text, Error> {
        let mut text = Text {
            min: lowest(fields, "minLength", at)?,
            max: highest(fields, "maxLength", at)?,
            ..Text::default()
        };
        for key in ["pattern", "format"] {
            let Some(value) = fields.get(key) else {
                continue;
            };
            let at = format!("{at}/{key}");
            let Some(value) = value.as_str() else {
                return Err(fault(&at, "expected a string"));
            };
            let sources = match key {
                "pattern" => vec![value.to_owned()],
                _ => format::patterns(value),
            };
            for source in sources {
                text.patterns.push(self.pattern(&source, &at)?);
            }
        }
        Ok(text)
    }

    fn arrays(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Array, Error> {
        // Before 2020-12 an array of `items` was what `prefixItems` is now.
        let (prefix, rest) = match fields.get("items") {
            Some(Value::Array(_)) => ("items", "additionalItems"),
            _ => ("prefixItems", "items"),
        };
        let mut array = Array {
            prefix: Vec::new(),
            items: Rc::new([]),
            min: lowest(fields, "minItems", at)?,
            max: highest(fields, "maxItems", at)?,
        };
        if let Some(value) = fields.get(prefix) {
            let at = format!("{at}/{prefix}");
            let Some(all) = value.as_array() else {
                return Err(fault(&at, "expected an array of schemas"));
            };
            for (i, schema) in all.iter().enumerate() {
                array
                    .prefix
                    .push(Rc::new([self.inner(schema, base, format!("{at}/{i}"))?]));
            }
        }
        if let Some(schema) = fields.get(rest) {
            array.items = Rc::new([self.inner(schema, base, format!("{at}/{rest}"))?]);
        }
        Ok(array)
    }

    fn objects(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Object, Error> {
        let mut part = Part {
            names: Vec::new(),
            properties: HashMap::new(),
            patterns: Vec::new(),
            additional: None,
            declares: fields.contains_key("properties"),
        };
        for key in ["properties", "patternProperties"] {
            let Some(value) = fields.get(key) else {
                continue;
            };
            let at = format!("{at}/{key}");
            let Some(all) = value.as_object() else {
                return Err(fault(&at, "expected an object of schemas"));
            };
            if all.len() > MAX_PROPERTIES {
                let n = all.len();
                return Err(fault(
                    &at,
                    format!("{n} properties, expected at most {MAX_PROPERTIES}"),
                ));
            }
            for (name, schema) in all {
                let at = format!("{at}/{}", escaped(name));
                if key == "patternProperties" {
                    let pattern = self.pattern(name, &at)?;
                    part.patterns.push((pattern, self.inner(schema, base, at)?));
                    continue;
                }
                let name = Rc::<str>::from(name.as_str());
                part.names.push(Rc::clone(&name));
                part.properties.insert(name, self.inner(schema, base, at)?);
            }
        }
        if let Some(schema) = fields.get("additionalProperties") {
            part.additional =
                Some(self.inner(schema, base, format!("{at}/additionalProperties"))?);
        }
        let mut required = Vec::new();
        // Draft 3 had a boolean `required` in each property; some generators still write it.
        if let Some(value) = fields.get("required").filter(|value| !value.is_boolean()) {
            let at = format!("{at}/required");
            let names = value
                .as_array()
                .map(|all| all.iter().map(Value::as_str).collect());
            let names: Option<Option<Vec<&str>>> = names;
            let Some(Some(names)) = names else {
                return Err(fault(&at, "expected an array of strings"));
            };
            self.count(&at, names.len() / 8)?;
            let mut seen = HashSet::new();
            required.extend(
                names
                    .into_iter()
                    .filter(|name| seen.insert(*name))
                    .map(Rc::from),
            );
        }
        let says_something =
            part.declares || !part.patterns.is_empty() || part.additional.is_some();
        Ok(Object {
            parts: says_something.then(|| Rc::new(part)).into_iter().collect(),
            required,
            min: lowest(fields, "minProperties", at)?,
            max: highest(fields, "maxProperties", at)?,
        })
    }
}

/// Whether a keyword that is not enforced excludes nothing as it is used.
fn is_without_effect(key: &str, value: &Value, fields: &Map<String, Value>) -> bool {
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    let has = |key: &str| fields.contains_key(key);
    match key {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
            is_empty || *value == Value::Bool(true)
        }
        "dependencies" | "dependentRequired" | "dependentSchemas" => is_empty,
        "maxContains" | "minContains" => !has("contains"),
        "if" => !has("then") && !has("else"),
        "then" | "else" => !has("if"),
        _ => false,
    }
}

/// A whole number of at least 0; `2.0` is one too.
fn count(fields: &Map<String, Value>, key: &str, at: &str) -> Result<Option<u64>, Error> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    let whole = |v: f64| (v >= 0.0 && v.fract() == 0.0).then_some(v as u64);
    let found = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    let fault = || {
        fault(
            &format!("{at}/{key}"),
            "expected a whole number of at least 0",
        )
    };
    found.map(Some).ok_or_else(fault)
}

fn lowest(fields: &Map<String, Value>, key: &str, at: &str) -> Result<u32, Error> {
    let n = count(fields, key, at)?.unwrap_or(0);
    match u32::try_from(n) {
        Ok(n) if u64::from(n) <= ENDLESS => Ok(n),
        _ => Err(fault(
            &format!("{at}/{key}"),
            format!("{n}, expected at most {ENDLESS}"),
        )),
    }
}

/// A limit that is never reached is none.
fn highest(fields: &Map<String, Value>, key: &str, at: &str) -> Result<Option<u32>, Error> {
    let n = count(fields, key, at)?.filter(|n| *n < ENDLESS);
    Ok(n.map(|n| n as u32))
}

fn numbers(fields: &Map<String, Value>, at: &str, is_integer: bool) -> Result<Number, Error> {
    let number = |key: &str| {
        let value = fields.get(key).filter(|value| !value.is_boolean());
        let decimal = value.map(Decimal::of).transpose();
        decimal.map_err(|message| fault(&format!("{at}/{key}"), message))
    };
    // In draft 4 `exclusiveMinimum` is a boolean beside `minimum`.
    let is_exclusive = |key: &str| fields.get(key) == Some(&Value::Bool(true));
    let bound = |key: &str, exclusive: &str| {
        let own = number(key)?.map(|value| Bound {
            value,
            is_exclusive: is_exclusive(exclusive),
        });
        let other = number(exclusive)?.map(|value| Bound {
            value,
            is_exclusive: true,
        });
        Ok::<_, Error>([own, other])
    };
    let multiples = number("multipleOf")?.into_iter().collect();
    let mut out = Number {
        is_integer,
        multiples,
        ..Number::default()
    };
    for low in bound("minimum", "exclusiveMinimum")?.into_iter().flatten() {
        out = out.both(&Number {
            low: Some(low),
            ..Number::default()
        });
    }
    for high in bound("maximum", "exclusiveMaximum")?.into_iter().flatten() {
        out = out.both(&Number {
            high: Some(high),
            ..Number::default()
        });
    }
    Ok(out)
}
