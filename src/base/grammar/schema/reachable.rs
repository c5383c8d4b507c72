//! The values that a schema reaches: for each the alternatives that can be written, and the properties of objects.
//!
//! An object whose schemas name properties and say nothing of others has no others, as llama-server and vLLM have it.
//! This holds for what all schemas of a value say together, so that `allOf` does not exclude the properties of its parts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use llguidance::derivre::RegexAst;

use super::super::Error;
use super::alternatives::{Alternative, ArrayRules, Object, SchemaSet, ValueType, any_value, both};
use super::char_classes::ANY;
use super::read::{SchemaTable, schema_error};
use super::strings::{is_empty, json};

/// Maximum number of kinds of names that overlapping patterns make.
const MAX_KINDS: usize = 64;

pub(super) struct ObjectFields {
    /// Names, their values, and whether they are required; in the order in which they are written.
    pub(super) named: Vec<(Rc<str>, SchemaSet, bool)>,
    /// The texts of other names, and their values.
    pub(super) free: Vec<(RegexAst, SchemaSet)>,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
}

pub(super) struct Variant {
    pub(super) alternative: Alternative,
    pub(super) fields: Option<ObjectFields>,
}

pub(super) struct ReachableValues<'a> {
    pub(super) schemas: SchemaTable<'a>,
    ways: HashMap<SchemaSet, Rc<Vec<Variant>>>,
    /// The values of which one that ends can be written.
    finite: HashSet<SchemaSet>,
    pub(super) empty: Option<String>,
}

impl<'a> ReachableValues<'a> {
    pub(super) fn new(schemas: SchemaTable<'a>) -> Self {
        Self {
            schemas,
            ways: HashMap::new(),
            finite: HashSet::new(),
            empty: None,
        }
    }

    /// The values that `root` reaches, each after one that contains it.
    pub(super) fn reach(&mut self, root: &SchemaSet) -> Result<Vec<SchemaSet>, Error> {
        let (mut order, mut open) = (Vec::new(), VecDeque::from([Rc::clone(root)]));
        let mut seen = HashSet::from([Rc::clone(root)]);
        while let Some(node) = open.pop_front() {
            let ways = self.ways(&node)?;
            for way in ways.iter() {
                for inner in way.inner() {
                    if seen.insert(Rc::clone(inner)) {
                        open.push_back(Rc::clone(inner));
                    }
                }
            }
            order.push(node);
        }
        // Values come to an end if those in them do; the ones that were found last are the innermost.
        loop {
            self.schemas.in_time()?;
            let n_known = self.finite.len();
            for node in order.iter().rev() {
                if !self.finite.contains(node) && self.ways[node].iter().any(|way| self.ends(way)) {
                    self.finite.insert(Rc::clone(node));
                }
            }
            if self.finite.len() == n_known {
                return Ok(order);
            }
        }
    }

    /// Whether a value can be written that comes to an end.
    pub(super) fn is_finite(&self, node: &SchemaSet) -> bool {
        self.finite.contains(node)
    }

    pub(super) fn ends(&self, way: &Variant) -> bool {
        match (&way.alternative.kind, &way.fields) {
            (ValueType::ArrayRules(array), _) => {
                let n_prefix = array.prefix.len().min(array.min as usize);
                let needs_more = array.min as usize > n_prefix;
                array.max.is_none_or(|max| array.min <= max)
                    && array.prefix[..n_prefix]
                        .iter()
                        .all(|item| self.is_finite(item))
                    && (!needs_more || self.is_finite(&array.items))
            }
            (_, Some(fields)) => {
                let required = || fields.named.iter().filter(|(.., is_required)| *is_required);
                let n = fields
                    .named
                    .iter()
                    .filter(|(_, node, _)| self.is_finite(node))
                    .count();
                let is_open = fields.free.iter().any(|(_, node)| self.is_finite(node));
                let max = fields.max.map_or(usize::MAX, |max| max as usize);
                required().all(|(_, node, _)| self.is_finite(node))
                    && required().count() <= max
                    && fields.min as usize <= max
                    && (is_open || n >= fields.min as usize)
            }
            _ => true,
        }
    }

    pub(super) fn ways(&mut self, node: &SchemaSet) -> Result<Rc<Vec<Variant>>, Error> {
        if let Some(known) = self.ways.get(node) {
            return Ok(Rc::clone(known));
        }
        self.schemas.in_time()?;
        let at = node
            .first()
            .map_or("", |first| self.schemas.place(*first))
            .to_owned();
        let mut shape = any_value();
        for number in node.iter() {
            let next = self.schemas.shape(*number)?;
            shape = self.schemas.meet(&shape, &next, &at)?;
        }
        let mut ways = Vec::with_capacity(shape.len());
        for mut alternative in shape {
            let mut fields = None;
            let is_empty = match &mut alternative.kind {
                ValueType::Number(number) => number.settle(),
                ValueType::Text(text) => text
                    .settle()
                    .map_err(|message| schema_error(&at, message))?,
                ValueType::ObjectRules(object) => {
                    fields = Some(
                        self.fields(object)
                            .map_err(|message| schema_error(&at, message))?,
                    );
                    false
                }
                _ => false,
            };
            if !is_empty {
                ways.push(Variant {
                    alternative,
                    fields,
                });
            }
        }
        if ways.is_empty() && self.empty.is_none() {
            self.empty = Some(at);
        }
        let ways = Rc::new(ways);
        self.ways.insert(Rc::clone(node), Rc::clone(&ways));
        Ok(ways)
    }

    pub(super) fn property(object: &Object, name: &str) -> Result<SchemaSet, String> {
        let mut all: SchemaSet = Rc::new([]);
        for part in &object.parts {
            let mut own: Vec<u32> = part.properties.get(name).copied().into_iter().collect();
            for (pattern, schema) in &part.patterns {
                if pattern.matches(name)? {
                    own.push(*schema);
                }
            }
            if own.is_empty() {
                own.extend(part.additional);
            }
            all = both(&all, &own);
        }
        Ok(all)
    }

    fn fields(&mut self, object: &Object) -> Result<ObjectFields, String> {
        let mut named = Vec::new();
        let required: HashSet<&str> = object.required.iter().map(|name| &**name).collect();
        let mut seen = HashSet::new();
        let declared = object.parts.iter().flat_map(|part| &part.names);
        for name in declared.chain(&object.required) {
            if seen.insert(&**name) {
                let node = Self::property(object, name)?;
                named.push((Rc::clone(name), node, required.contains(&**name)));
            }
        }
        let says_nothing = object
            .parts
            .iter()
            .all(|p| p.additional.is_none() && p.patterns.is_empty());
        let is_closed = says_nothing && object.parts.iter().any(|part| part.declares);
        let free = match is_closed {
            true => Vec::new(),
            false => self.free(object, &named)?,
        };
        Ok(ObjectFields {
            named,
            free,
            min: object.min,
            max: object.max,
        })
    }

    /// The names that are not listed, by the patterns that they match.
    fn free(
        &mut self,
        object: &Object,
        named: &[(Rc<str>, SchemaSet, bool)],
    ) -> Result<Vec<(RegexAst, SchemaSet)>, String> {
        let any = RegexAst::Regex(format!("\"{ANY}*\""));
        let listed: Vec<_> = named
            .iter()
            .map(|(name, ..)| RegexAst::Literal(json(name)))
            .collect();
        let mut kinds = vec![(vec![any], Vec::new())];
        if !listed.is_empty() {
            kinds[0]
                .0
                .push(RegexAst::Not(Box::new(RegexAst::Or(listed))));
        }
        let patterns = object.parts.iter().enumerate();
        let patterns =
            patterns.flat_map(|(i, part)| part.patterns.iter().map(move |(p, s)| (i, p, *s)));
        for (i, pattern, schema) in patterns {
            self.schemas.in_time().map_err(|error| error.to_string())?;
            let mut next = Vec::new();
            for (texts, matched) in kinds {
                let outside = RegexAst::Not(Box::new(pattern.texts.clone()));
                let in_it = [texts.clone(), vec![pattern.texts.clone()]].concat();
                let not_in_it = [texts, vec![outside]].concat();
                let with_it = [matched.clone(), vec![(i, schema)]].concat();
                for (texts, matched) in [(in_it, with_it), (not_in_it, matched)] {
                    if !is_empty(&RegexAst::And(texts.clone()))? {
                        next.push((texts, matched));
                    }
                }
            }
            if next.len() > MAX_KINDS {
                return Err("the patterns of names overlap in too many ways".into());
            }
            kinds = next;
        }
        let mut out = Vec::new();
        for (mut texts, matched) in kinds {
            let mut node: Vec<u32> = matched.iter().map(|(_, schema)| *schema).collect();
            for (i, part) in object.parts.iter().enumerate() {
                if !matched.iter().any(|(of, _)| *of == i) {
                    node.extend(part.additional);
                }
            }
            let texts = match texts.len() {
                1 => texts.remove(0),
                _ => RegexAst::And(texts),
            };
            out.push((texts, both(&node, &[])));
        }
        Ok(out)
    }
}

impl Variant {
    fn inner(&self) -> impl Iterator<Item = &SchemaSet> {
        let array = match &self.alternative.kind {
            ValueType::ArrayRules(array) => Some(array),
            _ => None,
        };
        let items = array.into_iter().flat_map(ArrayRules::nodes);
        let fields = self.fields.iter();
        let named = fields
            .clone()
            .flat_map(|fields| fields.named.iter().map(|(_, node, _)| node));
        let free = fields.flat_map(|fields| fields.free.iter().map(|(_, node)| node));
        items.chain(named).chain(free)
    }
}

impl ArrayRules {
    /// The values of items, those beyond the longest array left out.
    fn nodes(&self) -> impl Iterator<Item = &SchemaSet> {
        let max = self.max.map_or(usize::MAX, |max| max as usize);
        let rest = (self.prefix.len() < max).then_some(&self.items);
        self.prefix.iter().take(max).chain(rest)
    }
}
