//! Reading of a JSON Schema: each schema once, its keywords to alternatives, with the place of what is wrong.
//!
//! What cannot be enforced is an error. Keywords that no draft of JSON Schema knows are annotations, as the
//! specification says. Not here: values within values, which are read when something asks for them ([`Schemas::shape`]).

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::super::Error;
use super::super::deadline::Deadline;
use super::alternatives::{
    Alternative, Alternatives, ArrayRules, Object, PropertyRules, SchemaSet, ValueType, any_value,
    intersection, is_of_objects,
};
use super::number::NumberRules;
use super::resources::Resources;
use super::strings::{PatternCache, StringRules};

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

/// Maximum number of parts. A schema counts as one, and so do eight values of an enumeration.
const MAX_PARTS: usize = 1 << 14;
const MAX_ALTERNATIVES: usize = 1 << 15;
const MAX_IN_ALL: usize = 1 << 18;
/// Maximum nesting of schemas that the same value has to fit: each level is a recursive call.
const MAX_DEPTH: usize = 512;
static FALSE: Value = Value::Bool(false);
static OBJECT: LazyLock<Value> = LazyLock::new(|| json!({ "type": "object" }));

/// A schema, or a value that is the only one that fits.
struct SchemaEntry<'a> {
    value: &'a Value,
    base: usize,
    at: Rc<str>,
    is_constant: bool,
}

pub(super) struct SchemaTable<'a> {
    resources: Resources<'a>,
    sources: Vec<SchemaEntry<'a>>,
    numbers: HashMap<(*const Value, bool), u32>,
    read: HashMap<u32, Rc<Alternatives>>,
    open: HashSet<u32>,
    pub(super) groups: Vec<Rc<str>>,
    pub(super) patterns: PatternCache,
    n_parts: usize,
    n_alternatives: usize,
    deadline: &'a Deadline,
}

pub(super) fn schema_error(at: &str, message: impl Into<String>) -> Error {
    Error::Schema {
        at: at.to_owned(),
        message: message.into(),
    }
}

/// A key as part of a JSON pointer (RFC 6901, section 3).
pub(super) fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl<'a> SchemaTable<'a> {
    /// The schemas of a document, and the number of the outermost one.
    pub(super) fn new(root: &'a Value, deadline: &'a Deadline) -> (Self, u32) {
        let mut this = Self {
            resources: Resources::new(root),
            sources: Vec::new(),
            numbers: HashMap::new(),
            read: HashMap::new(),
            open: HashSet::new(),
            groups: Vec::new(),
            patterns: PatternCache::default(),
            n_parts: 0,
            n_alternatives: 0,
            deadline,
        };
        let source = SchemaEntry {
            value: root,
            base: this.resources.base_of(root, 0),
            at: "".into(),
            is_constant: false,
        };
        let root = this.add(source);
        (this, root)
    }

    pub(super) fn in_time(&self) -> Result<(), Error> {
        self.deadline.check()
    }

    pub(super) fn place(&self, number: u32) -> &str {
        &self.sources[number as usize].at
    }

    fn add(&mut self, source: SchemaEntry<'a>) -> u32 {
        let next = self.sources.len() as u32;
        let key = (std::ptr::from_ref(source.value), source.is_constant);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.sources.push(source);
        }
        number
    }

    pub(super) fn count(&mut self, at: &str, n: usize) -> Result<(), Error> {
        self.n_parts += n;
        match self.n_parts > MAX_PARTS {
            true => Err(schema_error(
                at,
                format!("the schema has more than {MAX_PARTS} parts"),
            )),
            false => Ok(()),
        }
    }

    pub(super) fn inner(&mut self, value: &'a Value, base: usize, at: &str) -> Result<u32, Error> {
        let base = self.resources.base_of(value, base);
        let n_known = self.sources.len();
        let number = self.add(SchemaEntry {
            value,
            base,
            at: at.into(),
            is_constant: false,
        });
        if self.sources.len() > n_known {
            self.count(at, 1)?;
            if !value.is_object() && !value.is_boolean() {
                return Err(schema_error(at, "expected an object or a boolean"));
            }
        }
        Ok(number)
    }

    pub(super) fn shape(&mut self, number: u32) -> Result<Rc<Alternatives>, Error> {
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
            return Err(schema_error(
                &at,
                format!("more than {MAX_DEPTH} schemas in each other"),
            ));
        }
        if !self.open.insert(number) {
            return Err(schema_error(
                &at,
                "the schema refers to itself for the same value",
            ));
        }
        let shape = match value {
            Value::Bool(true) => any_value(),
            Value::Bool(false) => Vec::new(),
            Value::Object(fields) => self.object(fields, base, &at)?,
            _ => return Err(schema_error(&at, "expected an object or a boolean")),
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
    ) -> Result<Alternatives, Error> {
        let mut shape = any_value();
        let mut has_conditions = false;
        for (key, value) in fields {
            let here = || format!("{at}/{}", pointer_token(key));
            let next = match key.as_str() {
                key if UNSUPPORTED.contains(&key) => {
                    if is_without_effect(key, value, fields) {
                        continue;
                    }
                    return Err(schema_error(&here(), format!("`{key}` cannot be enforced")));
                }
                key if CONDITIONS.contains(&key) => {
                    if std::mem::replace(&mut has_conditions, true) {
                        continue;
                    }
                    self.conditions(fields, base, at)?
                }
                "$ref" => {
                    let Some(reference) = value.as_str() else {
                        return Err(schema_error(&here(), "expected a string"));
                    };
                    let found = self.resources.target(reference, base);
                    let ((target, base), at) =
                        found.map_err(|message| schema_error(&here(), message))?;
                    let number = self.inner_of(target, base, &at)?;
                    Alternatives::clone(&*self.shape(number)?)
                }
                "allOf" | "anyOf" | "oneOf" => self.combined(key, value, base, &here())?,
                "const" => vec![Alternative::of(self.constant(value, &here())?)],
                "enum" => {
                    let Some(values) = value.as_array() else {
                        return Err(schema_error(&here(), "expected an array"));
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
        if !fields.contains_key("type") && is_of_objects(&shape) {
            shape.retain(|way| matches!(way.kind, ValueType::ObjectRules(_)));
        }
        Ok(shape)
    }

    fn inner_of(&mut self, value: &'a Value, base: usize, at: &str) -> Result<u32, Error> {
        let key = (std::ptr::from_ref(value), false);
        match self.numbers.get(&key) {
            Some(number) => Ok(*number),
            None => self.inner(value, base, at),
        }
    }

    pub(super) fn meet(
        &mut self,
        a: &Alternatives,
        b: &Alternatives,
        at: &str,
    ) -> Result<Alternatives, Error> {
        self.in_time()?;
        let too_many = || {
            let message = format!("more than {MAX_ALTERNATIVES} combinations of options");
            schema_error(at, message)
        };
        let met = intersection(a, b, MAX_ALTERNATIVES).ok_or_else(too_many)?;
        self.n_alternatives += met.len();
        match self.n_alternatives > MAX_IN_ALL {
            true => Err(too_many()),
            false => Ok(met),
        }
    }

    fn combined(
        &mut self,
        key: &str,
        value: &'a Value,
        base: usize,
        at: &str,
    ) -> Result<Alternatives, Error> {
        let Some(all) = value.as_array() else {
            return Err(schema_error(at, "expected an array of schemas"));
        };
        let mut numbers = Vec::with_capacity(all.len());
        for (i, schema) in all.iter().enumerate() {
            numbers.push(self.inner(schema, base, &format!("{at}/{i}"))?);
        }
        let mut shape = match key {
            "allOf" => any_value(),
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
                return Err(schema_error(
                    at,
                    format!("more than {MAX_ALTERNATIVES} options"),
                ));
            }
        }
        Ok(shape)
    }

    fn constant(&mut self, value: &'a Value, at: &str) -> Result<ValueType, Error> {
        let mut inner = |value: &'a Value, at: String| {
            self.add(SchemaEntry {
                value,
                base: 0,
                at: at.into(),
                is_constant: true,
            })
        };
        Ok(match value {
            Value::Null => ValueType::Null,
            Value::Bool(value) => ValueType::Bool(*value),
            Value::Number(_) => ValueType::Number(
                NumberRules::constant(value).map_err(|message| schema_error(at, message))?,
            ),
            Value::String(text) => ValueType::Text(StringRules {
                constant: Some(text.as_str().into()),
                ..StringRules::default()
            }),
            Value::Array(all) => {
                let items = all.iter().enumerate();
                let prefix =
                    items.map(|(i, value)| SchemaSet::from([inner(value, format!("{at}/{i}"))]));
                ValueType::ArrayRules(ArrayRules {
                    prefix: prefix.collect(),
                    items: Rc::new([]),
                    min: all.len() as u32,
                    max: Some(all.len() as u32),
                })
            }
            Value::Object(all) => {
                let each = all.iter().map(|(name, value)| {
                    let at = format!("{at}/{}", pointer_token(name));
                    (Rc::<str>::from(name.as_str()), inner(value, at))
                });
                let each: Vec<_> = each.collect();
                let names: Vec<_> = each.iter().map(|(name, _)| Rc::clone(name)).collect();
                ValueType::ObjectRules(Object {
                    required: names.clone(),
                    parts: vec![Rc::new(PropertyRules {
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
        self.own(&FALSE)
    }

    /// The number of the schema that every object fits, and nothing else.
    pub(super) fn objects_only(&mut self) -> u32 {
        self.own(&OBJECT)
    }

    fn own(&mut self, value: &'static Value) -> u32 {
        self.add(SchemaEntry {
            value,
            base: 0,
            at: "".into(),
            is_constant: false,
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
