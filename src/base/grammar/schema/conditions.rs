//! The conditions of a schema on values of each type: lengths, bounds, patterns, items and properties.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::Error;
use super::alternatives::{
    Alternative, Alternatives, ArrayRules, Object, PropertyRules, ValueType,
};
use super::format;
use super::number::{Bound, Decimal, NumberRules};
use super::read::{SchemaTable, pointer_token, schema_error};
use super::strings::{Pattern, StringRules};

/// Maximum number of properties of an object: the library's work grows with its square.
const MAX_PROPERTIES: usize = 1000;
/// A count above it is never reached.
const ENDLESS: u64 = 1_000_000_000;

impl<'a> SchemaTable<'a> {
    pub(super) fn conditions(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Alternatives, Error> {
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
                return Err(schema_error(
                    &format!("{at}/type"),
                    format!("{name} is no type"),
                ));
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
    ) -> Result<Alternatives, Error> {
        let mut shape = Vec::new();
        for name in types {
            let kind = match *name {
                "null" => ValueType::Null,
                "boolean" => {
                    shape.push(Alternative::of(ValueType::Bool(true)));
                    ValueType::Bool(false)
                }
                "integer" | "number" => ValueType::Number(numbers(fields, at, *name == "integer")?),
                "string" => ValueType::Text(self.strings(fields, at)?),
                "array" => ValueType::ArrayRules(self.arrays(fields, base, at)?),
                _ => ValueType::ObjectRules(self.objects(fields, base, at)?),
            };
            shape.push(Alternative::of(kind));
        }
        Ok(shape)
    }

    fn pattern(&mut self, source: &str, at: &str) -> Result<Rc<Pattern>, Error> {
        let pattern = self.patterns.of(source);
        pattern.map_err(|message| schema_error(at, message))
    }

    fn strings(&mut self, fields: &'a Map<String, Value>, at: &str) -> Result<StringRules, Error> {
        let mut text = StringRules {
            min: lowest(fields, "minLength", at)?,
            max: highest(fields, "maxLength", at)?,
            ..StringRules::default()
        };
        for key in ["pattern", "format"] {
            let Some(value) = fields.get(key) else {
                continue;
            };
            let at = format!("{at}/{key}");
            let Some(value) = value.as_str() else {
                return Err(schema_error(&at, "expected a string"));
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
    ) -> Result<ArrayRules, Error> {
        // Before 2020-12 an array of `items` was what `prefixItems` is now.
        let (prefix, rest) = match fields.get("items") {
            Some(Value::Array(_)) => ("items", "additionalItems"),
            _ => ("prefixItems", "items"),
        };
        let mut array = ArrayRules {
            prefix: Vec::new(),
            items: Rc::new([]),
            min: lowest(fields, "minItems", at)?,
            max: highest(fields, "maxItems", at)?,
        };
        if let Some(value) = fields.get(prefix) {
            let at = format!("{at}/{prefix}");
            let Some(all) = value.as_array() else {
                return Err(schema_error(&at, "expected an array of schemas"));
            };
            for (i, schema) in all.iter().enumerate() {
                array
                    .prefix
                    .push(Rc::new([self.inner(schema, base, &format!("{at}/{i}"))?]));
            }
        }
        if let Some(schema) = fields.get(rest) {
            array.items = Rc::new([self.inner(schema, base, &format!("{at}/{rest}"))?]);
        }
        Ok(array)
    }

    fn objects(
        &mut self,
        fields: &'a Map<String, Value>,
        base: usize,
        at: &str,
    ) -> Result<Object, Error> {
        let mut part = PropertyRules {
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
                return Err(schema_error(&at, "expected an object of schemas"));
            };
            if all.len() > MAX_PROPERTIES {
                let n = all.len();
                return Err(schema_error(
                    &at,
                    format!("{n} properties, expected at most {MAX_PROPERTIES}"),
                ));
            }
            for (name, schema) in all {
                let at = format!("{at}/{}", pointer_token(name));
                if key == "patternProperties" {
                    let pattern = self.pattern(name, &at)?;
                    part.patterns
                        .push((pattern, self.inner(schema, base, &at)?));
                    continue;
                }
                let name = Rc::<str>::from(name.as_str());
                part.names.push(Rc::clone(&name));
                part.properties.insert(name, self.inner(schema, base, &at)?);
            }
        }
        if let Some(schema) = fields.get("additionalProperties") {
            part.additional =
                Some(self.inner(schema, base, &format!("{at}/additionalProperties"))?);
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
                return Err(schema_error(&at, "expected an array of strings"));
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

/// A whole number of at least 0; `2.0` is one too.
fn count(fields: &Map<String, Value>, key: &str, at: &str) -> Result<Option<u64>, Error> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    let whole = |v: f64| (v >= 0.0 && v.fract() == 0.0).then_some(v as u64);
    let found = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    let fault = || {
        schema_error(
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
        _ => Err(schema_error(
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

fn numbers(fields: &Map<String, Value>, at: &str, is_integer: bool) -> Result<NumberRules, Error> {
    let number = |key: &str| {
        let value = fields.get(key).filter(|value| !value.is_boolean());
        let decimal = value.map(Decimal::of).transpose();
        decimal.map_err(|message| schema_error(&format!("{at}/{key}"), message))
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
    let mut out = NumberRules {
        is_integer,
        multiples,
        ..NumberRules::default()
    };
    for low in bound("minimum", "exclusiveMinimum")?.into_iter().flatten() {
        out = out.both(&NumberRules {
            low: Some(low),
            ..NumberRules::default()
        });
    }
    for high in bound("maximum", "exclusiveMaximum")?.into_iter().flatten() {
        out = out.both(&NumberRules {
            high: Some(high),
            ..NumberRules::default()
        });
    }
    Ok(out)
}
