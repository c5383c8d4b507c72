//! What fits a schema: alternatives of one type each, and which of them fit two schemas.

use std::collections::HashMap;
use std::rc::Rc;

use super::number::NumberRules;
use super::strings::{Pattern, StringRules};

/// A value that fits several schemas at once: their numbers, ascending. None means any value.
pub(super) type SchemaSet = Rc<[u32]>;

pub(super) fn both(a: &[u32], b: &[u32]) -> SchemaSet {
    let mut all: Vec<u32> = a.iter().chain(b).copied().collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

#[derive(Clone)]
pub(super) enum ValueType {
    Null,
    Bool(bool),
    Number(NumberRules),
    Text(StringRules),
    ArrayRules(ArrayRules),
    ObjectRules(Object),
}

#[derive(Clone)]
pub(super) struct ArrayRules {
    pub(super) prefix: Vec<SchemaSet>,
    pub(super) items: SchemaSet,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
}

impl ArrayRules {
    pub(super) fn item(&self, i: usize) -> &SchemaSet {
        self.prefix.get(i).unwrap_or(&self.items)
    }
}

#[derive(Clone, Default)]
pub(super) struct Object {
    /// The schemas that say something of properties.
    pub(super) parts: Vec<Rc<PropertyRules>>,
    pub(super) required: Vec<Rc<str>>,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
}

/// What one schema says of properties, by the numbers of their schemas.
pub(super) struct PropertyRules {
    pub(super) names: Vec<Rc<str>>,
    pub(super) properties: HashMap<Rc<str>, u32>,
    pub(super) patterns: Vec<(Rc<Pattern>, u32)>,
    pub(super) additional: Option<u32>,
    pub(super) declares: bool,
}

#[derive(Clone)]
pub(super) struct Alternative {
    pub(super) kind: ValueType,
    /// The options of `oneOf` that it comes from: the number of the `oneOf`, and that of the option.
    pub(super) options: Vec<(u32, u32)>,
}

impl Alternative {
    pub(super) fn of(kind: ValueType) -> Self {
        Self {
            kind,
            options: Vec::new(),
        }
    }

    /// Whether both come from different options of the same `oneOf`, and of which one.
    pub(super) fn rivals(&self, other: &Self) -> Option<(u32, u32, u32)> {
        let find = |(group, option): &(u32, u32)| {
            let other = other
                .options
                .iter()
                .find(|(g, o)| g == group && o != option)?;
            Some((*group, *option, other.1))
        };
        self.options.iter().find_map(find)
    }

    pub(super) fn both(&self, other: &Self) -> Option<Self> {
        let kind = match (&self.kind, &other.kind) {
            (ValueType::Null, ValueType::Null) => ValueType::Null,
            (ValueType::Bool(a), ValueType::Bool(b)) if a == b => ValueType::Bool(*a),
            (ValueType::Number(a), ValueType::Number(b)) => ValueType::Number(a.both(b)),
            (ValueType::Text(a), ValueType::Text(b)) => ValueType::Text(a.both(b)?),
            (ValueType::ArrayRules(a), ValueType::ArrayRules(b)) => {
                let n = a.prefix.len().max(b.prefix.len());
                ValueType::ArrayRules(ArrayRules {
                    prefix: (0..n).map(|i| both(a.item(i), b.item(i))).collect(),
                    items: both(&a.items, &b.items),
                    min: a.min.max(b.min),
                    max: a.max.into_iter().chain(b.max).min(),
                })
            }
            (ValueType::ObjectRules(a), ValueType::ObjectRules(b)) => {
                let (mut parts, mut required) = (a.parts.clone(), a.required.clone());
                for part in &b.parts {
                    if !parts.iter().any(|known| Rc::ptr_eq(known, part)) {
                        parts.push(Rc::clone(part));
                    }
                }
                for name in &b.required {
                    if !required.contains(name) {
                        required.push(Rc::clone(name));
                    }
                }
                ValueType::ObjectRules(Object {
                    parts,
                    required,
                    min: a.min.max(b.min),
                    max: a.max.into_iter().chain(b.max).min(),
                })
            }
            _ => return None,
        };
        let mut options = self.options.clone();
        for option in &other.options {
            if !options.contains(option) {
                options.push(*option);
            }
        }
        Some(Self { kind, options })
    }

    /// Whether it has no conditions that could exclude a value of its type.
    fn is_free(&self) -> bool {
        self.options.is_empty()
            && match &self.kind {
                ValueType::Null | ValueType::Bool(_) => true,
                ValueType::Number(number) => *number == NumberRules::default(),
                ValueType::Text(text) => {
                    text.constant.is_none()
                        && text.min == 0
                        && text.max.is_none()
                        && text.patterns.is_empty()
                }
                ValueType::ArrayRules(array) => {
                    array.prefix.is_empty()
                        && array.items.is_empty()
                        && array.min == 0
                        && array.max.is_none()
                }
                ValueType::ObjectRules(object) => {
                    object.parts.is_empty()
                        && object.required.is_empty()
                        && object.min == 0
                        && object.max.is_none()
                }
            }
    }
}

pub(super) type Alternatives = Vec<Alternative>;

/// Whether all conditions are on objects, and values of every other type are free: so a schema of objects looks that
/// does not name its type.
pub(super) fn is_of_objects(shape: &Alternatives) -> bool {
    let (objects, others): (Vec<_>, Vec<_>) = shape
        .iter()
        .partition(|way| matches!(way.kind, ValueType::ObjectRules(_)));
    let is_listed = |one: &Alternative| {
        let is_same = |way: &Alternative| match (&way.kind, &one.kind) {
            (ValueType::Bool(a), ValueType::Bool(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        };
        shape.iter().any(is_same)
    };
    !objects.is_empty()
        && !objects.iter().any(|way| way.is_free())
        && others.iter().all(|way| way.is_free())
        && any_value().iter().all(is_listed)
}

pub(super) fn any_value() -> Alternatives {
    let array = ArrayRules {
        prefix: Vec::new(),
        items: Rc::new([]),
        min: 0,
        max: None,
    };
    [
        ValueType::Null,
        ValueType::Bool(true),
        ValueType::Bool(false),
        ValueType::Number(NumberRules::default()),
        ValueType::Text(StringRules::default()),
        ValueType::ArrayRules(array),
        ValueType::ObjectRules(Object::default()),
    ]
    .map(Alternative::of)
    .into()
}

/// The alternatives that fit both, at most `limit`; `None` if there are more.
pub(super) fn intersection(
    a: &Alternatives,
    b: &Alternatives,
    limit: usize,
) -> Option<Alternatives> {
    let mut out = Vec::new();
    if a.len().saturating_mul(b.len()) > limit.saturating_mul(8) {
        return None;
    }
    for one in a {
        for other in b {
            if std::mem::discriminant(&one.kind) != std::mem::discriminant(&other.kind) {
                continue;
            }
            // Free alternatives change nothing; a copy of the other is cheaper.
            let met = match (one.is_free(), other.is_free()) {
                (true, _) if !matches!(one.kind, ValueType::Bool(_)) => Some(other.clone()),
                (_, true) if !matches!(other.kind, ValueType::Bool(_)) => Some(one.clone()),
                _ => one.both(other),
            };
            out.extend(met);
            if out.len() > limit {
                return None;
            }
        }
    }
    Some(out)
}
