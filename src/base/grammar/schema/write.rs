//! A JSON Schema as a grammar in Lark's form.
//!
//! Scalars of a value are one terminal. Arrays and objects are rules with a rule for each place: what was written
//! before decides whether a comma and what else may follow.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::rc::Rc;

use llguidance::derivre::RegexAst;
use serde_json::Value;

use super::super::Error;
use super::super::deadline::Deadline;
use super::super::lark_regex::{counts, quoted};
use super::alternatives::{ArrayRules, SchemaSet, ValueType};
use super::one_of;
use super::options::LarkOptions;
use super::reachable::{ObjectFields, ReachableValues, Variant};
use super::read::{SchemaTable, schema_error};
use super::strings::json;

/// Maximum number of rules for the places of one object with a number of properties.
const MAX_PLACES: usize = 20_000;

const MAX_BYTES: usize = 16 << 20;

pub(in super::super) fn to_lark(schema: &Value, deadline: &Deadline) -> Result<String, Error> {
    lark_of(schema, false, deadline)
}

pub(in super::super) fn object_to_lark(
    schema: &Value,
    deadline: &Deadline,
) -> Result<String, Error> {
    lark_of(schema, true, deadline)
}

fn lark_of(schema: &Value, is_object: bool, deadline: &Deadline) -> Result<String, Error> {
    let options = LarkOptions::of(schema)?;
    if *schema == Value::Bool(false) {
        return Err(schema_error("", "nothing fits `false`"));
    }
    let (mut schemas, root) = SchemaTable::new(schema, deadline);
    let root: SchemaSet = match is_object {
        true => Rc::new([root, schemas.objects_only()]),
        false => Rc::new([root]),
    };
    let mut values = ReachableValues::new(schemas);
    let nodes = values.reach(&root)?;
    if !values.is_finite(&root) {
        let at = values.empty.unwrap_or_default();
        return Err(schema_error(&at, "nothing fits"));
    }
    if !options.allows_overlaps {
        one_of::check(&mut values, &nodes)?;
    }
    let mut writer = LarkWriter {
        values,
        options,
        names: HashMap::new(),
        nested: HashSet::new(),
        terminals: HashMap::new(),
        out: String::new(),
        n: 0,
    };
    for node in &nodes {
        writer.name(node)?;
    }
    for node in &nodes {
        writer.value(node)?;
    }
    let space = match &writer.options.space {
        Some(space) => format!("%llguidance {{\"ignore_once\": true}}\n%ignore {space}\n"),
        None => String::new(),
    };
    Ok(format!(
        "{space}start: {}\n{}",
        writer.names[&root], writer.out
    ))
}

struct LarkWriter<'a> {
    values: ReachableValues<'a>,
    options: LarkOptions,
    /// The rules or terminals of values that come to an end.
    names: HashMap<SchemaSet, String>,
    /// Values that the library's own grammar writes: it takes no white space before them.
    nested: HashSet<SchemaSet>,
    terminals: HashMap<String, String>,
    out: String,
    n: usize,
}

fn lark(texts: &RegexAst) -> String {
    let all = |parts: &[RegexAst], by: &str| {
        let parts: Vec<String> = parts.iter().map(lark).collect();
        format!("({})", parts.join(by))
    };
    match texts {
        RegexAst::Literal(text) => quoted(text),
        RegexAst::Regex(text) => format!("/{}/", text.replace('/', "\\/")),
        RegexAst::And(parts) => all(parts, " & "),
        RegexAst::Or(parts) => all(parts, " | "),
        RegexAst::Not(inner) => format!("~{}", lark(inner)),
        // No other one is made here.
        _ => String::new(),
    }
}

impl LarkWriter<'_> {
    fn fresh(&mut self) -> usize {
        self.n += 1;
        self.n
    }

    fn line(&mut self, name: &str, body: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.out, "{name}: {body}");
    }

    fn rule(&mut self, body: &str) -> String {
        let name = format!("r{}", self.fresh());
        self.line(&name, body);
        name
    }

    /// The rule of a terminal, the same one for the same terminal: each mention of the terminal itself would be a
    /// symbol of its own, and the library has 65 000 of them.
    fn token(&mut self, body: String) -> String {
        if let Some(name) = self.terminals.get(&body) {
            return name.clone();
        }
        let n = self.fresh();
        self.line(&format!("T{n}"), &body);
        let name = format!("t{n}");
        self.line(&name, &format!("T{n}"));
        self.terminals.insert(body, name.clone());
        name
    }

    fn terminal(&mut self, texts: &RegexAst) -> String {
        self.token(lark(texts))
    }

    /// Names a value: a terminal if it is a scalar, else a rule that is written later.
    fn name(&mut self, node: &SchemaSet) -> Result<(), Error> {
        if !self.values.is_finite(node) {
            return Ok(());
        }
        let ways = self.values.ways(node)?;
        let is_scalar = |way: &Variant| match &way.alternative.kind {
            ValueType::ArrayRules(_) | ValueType::ObjectRules(_) => false,
            ValueType::Number(number) => number.multiples.is_empty(),
            _ => true,
        };
        let name = match ways.iter().all(is_scalar) {
            true => self.scalars(&ways),
            false => format!("v{}", self.fresh()),
        };
        self.names.insert(Rc::clone(node), name);
        let of_library = |way: &Variant| matches!(&way.alternative.kind, ValueType::Number(number) if !number.multiples.is_empty());
        if ways.iter().any(of_library) {
            self.nested.insert(Rc::clone(node));
        }
        Ok(())
    }

    fn scalars(&mut self, ways: &[Variant]) -> String {
        let texts = ways.iter().filter_map(|way| match &way.alternative.kind {
            ValueType::Null => Some(RegexAst::Literal("null".into())),
            ValueType::Bool(value) => Some(RegexAst::Literal(value.to_string())),
            ValueType::Text(text) => Some(text.texts()),
            ValueType::Number(number) if number.multiples.is_empty() => Some(number.texts()),
            _ => None,
        });
        let mut texts: Vec<RegexAst> = texts.collect();
        match texts.len() {
            0 => String::new(),
            1 => self.terminal(&texts.remove(0)),
            _ => self.terminal(&RegexAst::Or(texts)),
        }
    }

    fn value(&mut self, node: &SchemaSet) -> Result<(), Error> {
        let Some(name) = self
            .names
            .get(node)
            .filter(|name| name.starts_with('v'))
            .cloned()
        else {
            return Ok(());
        };
        let ways = self.values.ways(node)?;
        let at = node
            .first()
            .map_or("", |first| self.values.schemas.place(*first))
            .to_owned();
        let mut bodies = vec![self.scalars(&ways)];
        for way in ways.iter() {
            if !self.values.ends(way) {
                continue;
            }
            if self.out.len() > MAX_BYTES {
                return Err(schema_error(&at, "the schema is too large to be enforced"));
            }
            match (&way.alternative.kind, &way.fields) {
                (ValueType::ArrayRules(array), _) => bodies.push(self.array(array)),
                (ValueType::Number(number), _) => {
                    let schema = number
                        .library_schema()
                        .map_err(|message| schema_error(&at, message))?;
                    bodies.extend(schema.map(|schema| format!("%json {schema}")));
                }
                (_, Some(fields)) => bodies.push(self.object(fields, &at)?),
                _ => {}
            }
        }
        bodies.retain(|body| !body.is_empty());
        self.line(&name, &bodies.join(" | "));
        Ok(())
    }

    /// A mark before a value.
    fn before(&mut self, mark: &str, node: &SchemaSet) -> String {
        let space = self.options.space.as_deref();
        let space = space.filter(|_| self.nested.contains(node));
        let body = match space {
            None => mark.to_owned(),
            Some(space) => format!("{mark} ({space})?"),
        };
        self.token(body)
    }

    fn array(&mut self, array: &ArrayRules) -> String {
        let (min, max) = (
            array.min as usize,
            array.max.map_or(usize::MAX, |max| max as usize),
        );
        let ends = |node: &SchemaSet, this: &Self| this.values.is_finite(node);
        let prefix = array.prefix.iter().take(max);
        let n = prefix.take_while(|item| ends(item, self)).count();
        let is_cut = n < array.prefix.len().min(max);
        let comma = self.options.comma.clone();
        let [open, close] = ["\"[\"", "\"]\""].map(|mark| self.token(mark.to_owned()));
        let mut next = String::new();
        if !is_cut && max > n && ends(&array.items, self) {
            let item = self.names[&array.items].clone();
            let first = self.before(if n == 0 { "\"[\"" } else { &comma }, &array.items);
            let more = self.before(&comma, &array.items);
            let (low, high) = (min.saturating_sub(n), array.max.map(|_| max - n));
            let more = times(
                &format!("{more} {item}"),
                low.saturating_sub(1),
                high.map(|n| n - 1),
            );
            next = match (n, low) {
                (0, 0) => return format!("({first} {item} {more} | {open}) {close}"),
                (0, _) => return format!("{first} {item} {more} {close}"),
                (_, 0) => format!("({first} {item} {more})?"),
                _ => format!("{first} {item} {more}"),
            };
        }
        for (i, item) in array.prefix[..n].iter().enumerate().rev() {
            let mark = self.before(if i == 0 { "\"[\"" } else { &comma }, item);
            let body = format!("{mark} {} {next}", self.names[item]);
            next = match (i, i >= min) {
                (0, true) => format!("({body} | {open})"),
                (0, false) => body,
                (_, true) => format!("{}?", self.rule(&body)),
                (_, false) => self.rule(&body),
            };
        }
        match n {
            0 => format!("{open} {close}"),
            _ => format!("{next} {close}"),
        }
    }

    fn object(&mut self, fields: &ObjectFields, at: &str) -> Result<String, Error> {
        let named = fields
            .named
            .iter()
            .filter(|(_, node, _)| self.values.is_finite(node));
        let named: Vec<_> = named.cloned().collect();
        let free = self.free(fields);
        let n_required = named
            .iter()
            .filter(|(.., is_required)| *is_required)
            .count();
        let min = if fields.min as usize <= n_required {
            0
        } else {
            fields.min as usize
        };
        let max = fields.max.map(|max| max as usize);
        let max = max.filter(|max| free.is_some() || *max < named.len());
        // Properties are counted as far as their number matters.
        let most = max.unwrap_or(min.max(1));
        if named.len().saturating_mul(most.min(named.len())) > MAX_PLACES {
            return Err(schema_error(at, "so many properties cannot be counted"));
        }
        let comma = self.token(self.options.comma.clone());
        let [open, close] = ["\"{\"", "\"}\""].map(|mark| self.token(mark.to_owned()));
        let may_add = |n: usize| max.is_none_or(|max| n < max);
        let mut places: Vec<Option<String>> = Vec::new();
        for n in 0..=most.min(named.len()) {
            let more = free.as_ref().filter(|_| may_add(n)).map(|free| {
                let first = if n == 0 { "" } else { comma.as_str() };
                let (low, high) = (min.saturating_sub(n), max.map(|max| max - n));
                let more = times(
                    &format!("{comma} {free}"),
                    low.saturating_sub(1),
                    high.map(|n| n - 1),
                );
                format!("{first} {free} {more}")
            });
            places.push(match (more, n >= min) {
                (Some(more), true) => Some(format!("{}?", self.rule(&more))),
                (Some(more), false) => Some(self.rule(&more)),
                (None, true) => Some(String::new()),
                (None, false) => None,
            });
        }
        for (i, (name, node, is_required)) in named.iter().enumerate().rev() {
            let colon = self.options.colon.clone();
            let colon = self.before(&colon, node);
            let key = self.token(quoted(&json(name)));
            let pair = self.rule(&format!("{key} {colon} {}", self.names[node]));
            let mut before = Vec::new();
            for n in 0..=most.min(i) {
                let taken = places[(n + 1).min(places.len() - 1)].clone();
                let taken = taken.filter(|_| may_add(n)).map(|next| match n {
                    0 => format!("{pair} {next}"),
                    _ => format!("{comma} {pair} {next}"),
                });
                let left = places[n].clone().filter(|_| !is_required);
                before.push(match (taken, left) {
                    (None, left) => left,
                    (Some(taken), None) => Some(self.rule(&taken)),
                    (Some(taken), Some(next)) if next.is_empty() => {
                        Some(format!("{}?", self.rule(&taken)))
                    }
                    (Some(taken), Some(next)) => Some(self.rule(&format!("{taken} | {next}"))),
                });
            }
            places = before;
        }
        let inner = places.into_iter().next().flatten().unwrap_or_default();
        Ok(format!("{open} {inner} {close}"))
    }

    fn free(&mut self, fields: &ObjectFields) -> Option<String> {
        let mut kinds = Vec::new();
        for (texts, node) in &fields.free {
            if self.values.is_finite(node) {
                let colon = self.options.colon.clone();
                let colon = self.before(&colon, node);
                kinds.push(format!(
                    "{} {colon} {}",
                    self.terminal(texts),
                    self.names[node]
                ));
            }
        }
        (!kinds.is_empty()).then(|| self.rule(&kinds.join(" | ")))
    }
}

fn times(inner: &str, min: usize, max: Option<usize>) -> String {
    match max {
        Some(0) => String::new(),
        max => format!("({inner}){}", counts(min as u32, max.map(|max| max as u32))),
    }
}
