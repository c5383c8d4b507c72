//! What fits a schema: alternatives of one type each, and which of them fit two schemas.

use std::collections::HashMap;
use std::rc::Rc;

use super::number::Number;
use super::text::{Pattern, Text};

/// A value that fits several schemas at once: their numbers, ascending. None means any value.
pub(super) type Node = Rc<[u32]>;

/// The values that fit the schemas of both.
pub(super) fn both(a: &[u32], b: &[u32]) -> Node {
    let mut all: Vec<u32> = a.iter().chain(b).copied().collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

/// Values of one type.
#[derive(Clone)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    Array(Array),
    Object(Object),
}

#[derive(Clone)]
pub(super) struct Array {
    pub(super) prefix: Vec<Node>,
    /// Items after the prefix.
    pub(super) items: Node,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
}

impl Array {
    pub(super) fn item(&self, i: usize) -> &Node {
        self.prefix.get(i).unwrap_or(&self.items)
    }
}

#[derive(Clone, Default)]
pub(super) struct Object {
    /// The schemas that say something of properties.
    pub(super) parts: Vec<Rc<Part>>,
    pub(super) required: Vec<Rc<str>>,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
}

/// What one schema says of properties, by the numbers of their schemas.
pub(super) struct Part {
    /// Names in the order of the schema.
    pub(super) names: Vec<Rc<str>>,
    pub(super) properties: HashMap<Rc<str>, u32>,
    pub(super) patterns: Vec<(Rc<Pattern>, u32)>,
    pub(super) additional: Option<u32>,
    /// Whether `properties` is there.
    pub(super) declares: bool,
}

/// One of the alternatives of a schema.
#[derive(Clone)]
pub(super) struct Alternative {
    pub(super) kind: Kind,
    /// The options of `oneOf` that it comes from: the number of the `oneOf`, and that of the option.
    pub(super) options: Vec<(u32, u32)>,
}

impl Alternative {
    pub(super) fn of(kind: Kind) -> Self {
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

    /// The values that fit both, if there may be any.
    pub(super) fn both(&self, other: &Self) -> Option<Self> {
        let kind = match (&self.kind, &other.kind) {
            (Kind::Null, Kind::Null) => Kind::Null,
            (Kind::Bool(a), Kind::Bool(b)) if a == b => Kind::Bool(*a),
            (Kind::Number(a), Kind::Number(b)) => Kind::Number(a.both(b)),
            (Kind::Text(a), Kind::Text(b)) => Kind::Text(a.both(b)?),
            (Kind::Array(a), Kind::Array(b)) => {
                let n = a.prefix.len().max(b.prefix.len());
                Kind::Array(Array {
                    prefix: (0..n).map(|i| both(a.item(i), b.item(i))).collect(),
                    items: both(&a.items, &b.items),
                    min: a.min.max(b.min),
                    max: a.max.into_iter().chain(b.max).min(),
                })
            }
            (Kind::Object(a), Kind::Object(b)) => {
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
                Kind::Object(Object {
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
                Kind::Null | Kind::Bool(_) => true,
                Kind::Number(number) => *number == Number::default(),
                Kind::Text(text) => {
                    text.constant.is_none()
                        && text.min == 0
                        && text.max.is_none()
                        && text.patterns.is_empty()
                }
                Kind::Array(array) => {
                    array.prefix.is_empty()
                        && array.items.is_empty()
                        && array.min == 0
                        && array.max.is_none()
                }
                Kind::Object(object) => {
                    object.parts.is_empty()
                        && object.required.is_empty()
                        && object.min == 0
                        && object.max.is_none()
                }
            }
    }
}

/// The alternatives of a schema.
pub(super) type Shape = Vec<Alternative>;

/// Whether all conditions are on objects, and values of every other type are free: so a schema of objects looks that
/// does not name its type.
pub(super) fn is_of_objects(shape: &Shape) -> bool {
    let (objects, others): (Vec<_>, Vec<_>) = shape
        .iter()
        .partition(|way| matches!(way.kind, Kind::Object(_)));
    let is_listed = |one: &Alternative| {
        let is_same = |way: &Alternative| match (&way.kind, &one.kind) {
            (Kind::Bool(a), Kind::Bool(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        };
        shape.iter().any(is_same)
    };
    !objects.is_empty()
        && !objects.iter().any(|way| way.is_free())
        && others.iter().all(|way| way.is_free())
        && any().iter().all(is_listed)
}

/// Any value.
pub(super) fn any() -> Shape {
    let array = Array {
        prefix: Vec::new(),
        items: Rc::new([]),
        min: 0,
        max: None,
    };
    [
        Kind::Null,
        Kind::Bool(true),
        Kind::Bool(false),
        Kind::Number(Number::default()),
        Kind::Text(Text::default()),
        Kind::Array(array),
        Kind::Object(Object::default()),
    ]
    .map(Alternative::of)
    .into()
}

/// The alternatives that fit both, at most `limit`; `None` if there are more.
pub(super) fn meet(a: &Shape, b: &Shape, limit: usize) -> Option<Shape> {
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
                (true, _) if !matches!(one.kind, Kind::Bool(_)) => Some(other.clone()),
                (_, true) if !matches!(other.kind, Kind::Bool(_)) => Some(one.clone()),
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
