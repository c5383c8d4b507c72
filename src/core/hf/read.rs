//! Reads TOML text as a map. All problems are returned together, each with its place.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use crate::arch::expr::Expr;
use crate::arch::table::{TableFields, TableReader, TomlItem, ValueForm};
use crate::arch::{Diagnostic, Diagnostics, Span, Spanned};

use super::CONFIG;
use super::definition::{
    Composition, DefaultValue, ElementSlice, Expressions, Map, ParamRule, ParamValue, PartRule,
    Repeat, Requirement, TensorGroup, TensorOrigin, TensorRule, TextModel,
};
use super::rearrange::Pattern;

/// Default prefix of a layer's tensors in the architecture.
const PREFIX: &str = "blk.{il}.";

const VALUES: ValueForm = ValueForm::List(&ValueForm::Value);

/// Names of tensors, and tables with their own rules.
const PARTS: ValueForm = ValueForm::List(&ValueForm::Either(&[
    ValueForm::Text,
    ValueForm::Table("a part"),
]));

/// Reads a map by itself, without the parts that it shares with others ([`Map::completed`]).
pub(super) fn parse(path: &str, source: &str) -> Result<Map, Diagnostics> {
    read(path, source, true)
}

/// Reads the part that all maps share: parameters that are set if the configuration has their keys, and ignored keys
/// and tensors.
pub(super) fn parse_common(path: &str, source: &str) -> Result<Map, Diagnostics> {
    let mut map = read(path, source, false)?;
    map.params
        .iter_mut()
        .for_each(|param| param.is_optional = true);
    Ok(map)
}

fn read(path: &str, source: &str, is_whole: bool) -> Result<Map, Diagnostics> {
    let (root, syntax) = DeTable::parse_recoverable(source);
    if !syntax.is_empty() {
        let problems = syntax.iter().map(crate::arch::syntax_problem).collect();
        return Err(Diagnostics::new(path, source, problems));
    }
    let mut reader = MapReader(TableReader::new(source));
    let mut map = reader.map(root.get_ref(), is_whole);
    map.configuration = CONFIG;
    match reader.0.problems.is_empty() {
        true => Ok(map),
        false => Err(Diagnostics::new(path, source, reader.0.problems)),
    }
}

/// The JSON Schema (2020-12) of a map.
pub fn schema() -> serde_json::Value {
    // A table of every kind that a map may have; a map with `text` has no `arch`.
    const EVERY_TABLE: &str = "text = {}\ndefaults.x = {}\nparams.x = { value = 1 }\nignore = {}\nlayers = [{}]\n\
        tensors = { x = { from = [{ from = \"x\" }] }, y = { shape = [1] } }\n";
    let whole = DeTable::parse_recoverable(EVERY_TABLE).0;
    let without_text = DeTable::new();
    let mut reader = MapReader(TableReader::new(EVERY_TABLE));
    reader.map(whole.get_ref(), true);
    reader.map(&without_text, true);
    crate::arch::schema::described("a map", &reader.0.kinds, &[])
}

struct MapReader<'a>(TableReader<'a>);

impl<'a> MapReader<'a> {
    fn map(&mut self, root: &'a DeTable<'a>, is_whole: bool) -> Map {
        let mut fields = TableFields::new(root, 0..0, "a map");
        let mut map = Map::default();
        if is_whole {
            map.extends = self.0.optional_text(&mut fields, "extends");
            map.text = self.text_model(&mut fields);
            if map.text.is_none() {
                // A map with `text` has no architecture, and one that extends another may have that of the other.
                match fields.take("arch", ValueForm::Name) {
                    Some(item) => {
                        map.arch = self
                            .0
                            .name(item)
                            .map(|expr| Spanned::new(expr, item.span()))
                    }
                    None if map.extends.is_some() => {}
                    None => self.0.missing(&fields, "arch"),
                }
            }
            map.types = self.0.optional_texts(&mut fields, "model_types");
            match fields.take_required("classes", ValueForm::Texts) {
                Some(item) => map.classes = self.0.texts(item, "classes"),
                None => self.0.missing(&fields, "classes"),
            }
        }
        map.endings = self.names(&mut fields, "endings");
        map.roots = self.0.any_texts(&mut fields, "roots");
        map.prefixes = self.0.any_texts(&mut fields, "prefixes");
        map.nested = self.0.any_texts(&mut fields, "nested");
        map.outer = self.0.any_texts(&mut fields, "outer");
        map.aliases = self.names(&mut fields, "aliases");
        map.defaults = self.defaults(&mut fields);
        map.meanings = self.meanings(&mut fields);
        map.notes = self.notes(&mut fields);
        map.values = self.expressions(&mut fields, "values");
        map.rules = self.rules(&mut fields);
        map.params = self.targets(&mut fields, "params");
        map.metadata = self.targets(&mut fields, "metadata");
        map.processor = self.targets(&mut fields, "processor");
        let tensors = self.tensors(&mut fields);
        map.groups.push(TensorGroup {
            tensors,
            ..TensorGroup::default()
        });
        for (table, span) in fields
            .take("layers", ValueForm::List(&ValueForm::Table("layers")))
            .map(|item| self.0.tables(item, "layers"))
            .unwrap_or_default()
        {
            let group = self.layers(table, span);
            map.groups.extend(group);
        }
        if let Some(item) = fields.take("ignore", ValueForm::Table("ignore"))
            && let Some(table) = self.0.table(item, "ignore")
        {
            let mut ignore = TableFields::new(table, item.span(), "ignore");
            map.ignored_tensors = self.0.optional_texts(&mut ignore, "tensors");
            map.ignored_keys = self.0.optional_texts(&mut ignore, "config");
            map.parts = self.parts_of(&mut ignore);
            self.0.finish(ignore);
        }
        self.0.finish(fields);
        map
    }

    /// The place of the text model, if the map is for models that contain one.
    fn text_model(&mut self, fields: &mut TableFields<'a>) -> Option<TextModel> {
        let item = fields.take("text", ValueForm::Table("text"))?;
        let table = self.0.table(item, "text")?;
        let mut fields = TableFields::new(table, item.span(), "text");
        let text = TextModel {
            objects: self.0.any_texts(&mut fields, "objects"),
            class: self.optional_expr(&mut fields, "class"),
            names: self.names(&mut fields, "names"),
        };
        self.0.finish(fields);
        Some(text)
    }

    /// The parts of a model, each with patterns of its tensors.
    fn parts_of(&mut self, fields: &mut TableFields<'a>) -> Vec<(String, Vec<Spanned<String>>)> {
        let parts = self
            .0
            .entries(fields, "parts", ValueForm::Map(&ValueForm::Texts));
        parts
            .into_iter()
            .map(|(name, item)| (name.value, self.0.texts(item, "parts")))
            .collect()
    }

    /// A table from a name to one or several names.
    fn names(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> BTreeMap<String, Vec<String>> {
        let entries = self
            .0
            .entries(fields, key, ValueForm::Map(&ValueForm::TEXT_OR_TEXTS));
        entries
            .into_iter()
            .map(|(name, item)| (name.value, self.0.text_or_texts(item, key)))
            .collect()
    }

    fn defaults(&mut self, fields: &mut TableFields<'a>) -> BTreeMap<String, DefaultValue> {
        const DEFAULT: ValueForm =
            ValueForm::Either(&[ValueForm::Table("a default"), ValueForm::Value]);
        let mut out = BTreeMap::new();
        for (name, item) in self.0.entries(fields, "defaults", ValueForm::Map(&DEFAULT)) {
            let fallback = match item.get_ref() {
                DeValue::Table(table) => {
                    let mut fields = TableFields::new(table, item.span(), "a default");
                    let absent = self.optional_expr(&mut fields, "absent");
                    let null = self.optional_expr(&mut fields, "null");
                    self.0.finish(fields);
                    DefaultValue { absent, null }
                }
                _ => {
                    let expr = self.0.expr(item);
                    DefaultValue {
                        absent: expr.clone(),
                        null: expr,
                    }
                }
            };
            out.insert(name.value, fallback);
        }
        out
    }

    fn meanings(&mut self, fields: &mut TableFields<'a>) -> BTreeMap<String, String> {
        let entries = self
            .0
            .entries(fields, "meaning", ValueForm::Map(&ValueForm::Text));
        entries
            .into_iter()
            .filter_map(|(name, item)| Some((name.value, self.0.text(item, "meaning")?.value)))
            .collect()
    }

    fn notes(&mut self, fields: &mut TableFields<'a>) -> Vec<(String, Requirement)> {
        let entries = self
            .0
            .entries(fields, "notes", ValueForm::Map(&ValueForm::Condition));
        let note = |(text, item): (Spanned<String>, _)| {
            let (holds, span) = (self.0.expr(item)?, text.span);
            Some((text.value, Requirement { holds, span }))
        };
        entries.into_iter().filter_map(note).collect()
    }

    fn expressions(&mut self, fields: &mut TableFields<'a>, key: &'static str) -> Expressions {
        let entries = self
            .0
            .entries(fields, key, ValueForm::Map(&ValueForm::Value));
        entries
            .into_iter()
            .filter_map(|(name, value)| Some((name.value, self.0.expr(value)?)))
            .collect()
    }

    fn rules(&mut self, fields: &mut TableFields<'a>) -> Vec<Requirement> {
        let texts = self.0.optional_texts(fields, "require");
        let rule = |text: Spanned<String>| {
            let holds = self.0.expr_text(&text.value, text.span.clone())?;
            let span = text.span;
            Some(Requirement { holds, span })
        };
        texts.into_iter().filter_map(rule).collect()
    }

    fn targets(&mut self, fields: &mut TableFields<'a>, key: &'static str) -> Vec<ParamRule> {
        const TARGET: ValueForm =
            ValueForm::Either(&[ValueForm::Table("a parameter"), VALUES, ValueForm::Value]);
        let entries = self.0.entries(fields, key, ValueForm::Map(&TARGET));
        entries
            .into_iter()
            .filter_map(|(name, item)| self.target(&name, item))
            .collect()
    }

    fn target(&mut self, name: &Spanned<String>, item: TomlItem<'a>) -> Option<ParamRule> {
        let plain = |value| ParamRule {
            name: name.clone(),
            value,
            when: None,
            per_layer: false,
            is_optional: false,
        };
        let DeValue::Table(table) = item.get_ref() else {
            return self.given(item).map(plain);
        };
        let mut fields = TableFields::new(table, item.span(), "a parameter");
        let value = fields.take("value", ValueForm::Either(&[VALUES, ValueForm::Value]));
        let value = match (value, fields.take("stored", ValueForm::Text)) {
            (Some(item), None) => self.given(item),
            (None, Some(item)) => Some(ParamValue::Stored(self.0.text(item, "stored")?.value)),
            _ => {
                self.0
                    .report(item.span(), "a parameter has either `value` or `stored`");
                None
            }
        };
        let when = self.optional_expr(&mut fields, "when");
        let per_layer = self.flag(&mut fields, "per_layer");
        let is_optional = self.flag(&mut fields, "optional");
        self.0.finish(fields);
        Some(ParamRule {
            when,
            per_layer,
            is_optional,
            ..plain(value?)
        })
    }

    fn given(&mut self, item: TomlItem<'a>) -> Option<ParamValue> {
        match item.get_ref() {
            DeValue::Array(_) => Some(ParamValue::List(self.exprs(item, "value"))),
            _ => self.0.expr(item).map(ParamValue::One),
        }
    }

    fn flag(&mut self, fields: &mut TableFields<'a>, key: &'static str) -> bool {
        let Some(item) = fields.take(key, ValueForm::Flag) else {
            return false;
        };
        match item.get_ref() {
            DeValue::Boolean(flag) => *flag,
            _ => self.0.wrong(item, key, "true or false").unwrap_or_default(),
        }
    }

    fn optional_expr(&mut self, fields: &mut TableFields<'a>, key: &'static str) -> Option<Expr> {
        self.0.optional_expr(fields, key, ValueForm::Value)
    }

    fn layers(&mut self, table: &'a DeTable<'a>, span: Span) -> Option<TensorGroup> {
        let mut fields = TableFields::new(table, span, "layers");
        let count = fields.take_required("count", ValueForm::Value);
        if count.is_none() {
            let message =
                "missing key `count`, the number of layers: `count = \"num_hidden_layers\"`";
            self.0.report(fields.span.clone(), message);
        }
        let first = fields.take("first", ValueForm::Value);
        let [count, first] =
            [count, first].map(|item| Some(Spanned::new(self.0.expr(item?)?, item?.span())));
        let prefix = self.0.optional_text(&mut fields, "prefix");
        let from = self.0.optional_text(&mut fields, "from");
        let tensors = self.tensors(&mut fields);
        self.0.finish(fields);
        Some(TensorGroup {
            layers: Some((count?, first)),
            prefix: prefix.map_or_else(|| PREFIX.into(), |text| text.value),
            from: from.map(|text| text.value).unwrap_or_default(),
            tensors,
        })
    }

    fn tensors(&mut self, fields: &mut TableFields<'a>) -> Vec<TensorRule> {
        const RULE: ValueForm = ValueForm::Either(&[
            ValueForm::Text,
            ValueForm::Table("a tensor"),
            PARTS,
            ValueForm::List(&ValueForm::Table("a tensor")),
        ]);
        let mut out = Vec::new();
        for (name, item) in self.0.entries(fields, "tensors", ValueForm::Map(&RULE)) {
            match item.get_ref() {
                // Of several rules for one name, the first whose tensors are stored is used.
                DeValue::Array(items)
                    if items
                        .iter()
                        .all(|i| matches!(i.get_ref(), DeValue::Table(_))) =>
                {
                    out.extend(
                        items
                            .iter()
                            .filter_map(|item| self.tensor(name.clone(), item)),
                    );
                }
                _ => out.extend(self.tensor(name, item)),
            }
        }
        out
    }

    fn tensor(&mut self, name: Spanned<String>, item: TomlItem<'a>) -> Option<TensorRule> {
        let DeValue::Table(table) = item.get_ref() else {
            let parts = self.parts(item, &ElementSlice::default());
            return Some(TensorRule {
                name,
                when: None,
                otherwise: None,
                made: TensorOrigin::Of(Composition {
                    parts,
                    ..Composition::default()
                }),
                each: None,
                unit_rows: false,
            });
        };
        let mut fields = TableFields::new(table, item.span(), "a tensor");
        let when = self.optional_expr(&mut fields, "when");
        let otherwise = self.0.optional_text(&mut fields, "else");
        if let (Some(text), None) = (&otherwise, &when) {
            let message =
                "`else` needs `when`: it names the tensor that is used if `when` is false";
            self.0.report(text.span.clone(), message);
        }
        let each = self.optional_expr(&mut fields, "each");
        let unit_rows = self.flag(&mut fields, "unit_rows");
        let from = fields.take("from", ValueForm::Either(&[ValueForm::Text, PARTS]));
        let made = match (from, fields.take("shape", VALUES)) {
            (Some(from), None) => {
                let repeat = self.repeat(&mut fields, from);
                let times = self.0.optional_text(&mut fields, "times");
                let is_beside = self.flag(&mut fields, "beside");
                let taken = self.taken(&mut fields);
                let parts = self.parts(from, &taken);
                Some(TensorOrigin::Of(Composition {
                    parts,
                    repeat,
                    is_beside,
                    times,
                }))
            }
            (None, Some(shape)) => {
                if unit_rows {
                    let message = "`unit_rows` needs a stored tensor, which `from` names";
                    self.0.report(shape.span(), message);
                }
                if each.is_none() {
                    let message = "without `from`, `each` must give the elements";
                    self.0.report(shape.span(), message);
                }
                Some(TensorOrigin::Computed(self.exprs(shape, "shape")))
            }
            _ => {
                let message = "a tensor needs either `from` or `shape`, not both";
                self.0.report(item.span(), message);
                None
            }
        };
        self.0.finish(fields);
        Some(TensorRule {
            name,
            when,
            otherwise: otherwise.map(|text| text.value),
            made: made?,
            each,
            unit_rows,
        })
    }

    /// The number of tensors that `{e}` counts in the names of `from`.
    fn repeat(&mut self, fields: &mut TableFields<'a>, from: TomlItem<'a>) -> Option<Repeat> {
        let stack = self.optional_expr(fields, "stack");
        let join = self.optional_expr(fields, "join");
        if stack.is_some() && join.is_some() {
            let message = "a tensor has either `stack` or `join`: either the parts make a new axis or they do not";
            self.0.report(from.span(), message);
        }
        let first = self.optional_expr(fields, "first");
        if let (Some(_), None, None) = (&first, &stack, &join) {
            let message = "`first` is the first number of a `stack` or `join`";
            self.0.report(from.span(), message);
        }
        let is_stack = stack.is_some();
        let count = stack.or(join)?;
        Some(Repeat {
            first,
            count,
            is_stack,
        })
    }

    /// A name, or several names and tables with their own rules.
    fn parts(&mut self, item: TomlItem<'a>, taken: &ElementSlice) -> Vec<PartRule> {
        let items: Vec<TomlItem<'a>> = match item.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![item],
        };
        let mut out = Vec::new();
        let is_table = |item: &TomlItem<'_>| matches!(item.get_ref(), DeValue::Table(_));
        if let (Some(word), true) = (taken.word(), items.iter().all(is_table)) {
            let message = format!("`{word}` has no effect here: each part has keys of its own");
            self.0.report(item.span(), message);
        }
        for item in items {
            let (name, taken) = match item.get_ref() {
                DeValue::Table(table) => {
                    let mut fields = TableFields::new(table, item.span(), "a part");
                    let name = self.0.required_text(&mut fields, "from");
                    let own = self.taken(&mut fields);
                    self.0.finish(fields);
                    (name, own)
                }
                _ => (self.0.text(item, "from"), taken.clone()),
            };
            out.extend(name.map(|from| PartRule { from, taken }));
        }
        out
    }

    fn taken(&mut self, fields: &mut TableFields<'a>) -> ElementSlice {
        let rows = fields.take("rows", VALUES);
        let rows = rows.and_then(|item| self.range(item, "rows"));
        let rearrange = fields.take("rearrange", ValueForm::Text);
        let rearrange = rearrange.and_then(|item| self.pattern(item));
        let sizes_at = fields.given("sizes");
        let sizes = self.expressions(fields, "sizes");
        let take_at = fields.given("take");
        let take = self.0.entries(fields, "take", ValueForm::Map(&VALUES));
        let range =
            |(name, item): (Spanned<String>, _)| Some((name.value, self.range(item, "take")?));
        let take = take.into_iter().filter_map(range).collect();
        for item in [sizes_at, take_at].into_iter().flatten() {
            self.axes(item, rearrange.as_ref());
        }
        ElementSlice {
            rows,
            rearrange,
            sizes,
            take,
            at: self.optional_expr(fields, "at"),
            slice: fields
                .take("slice", VALUES)
                .and_then(|item| self.range(item, "slice")),
        }
    }

    /// Reports names that are not axes of the notation.
    fn axes(&mut self, item: TomlItem<'a>, pattern: Option<&Spanned<Pattern>>) {
        let Some(pattern) = pattern else {
            return self
                .0
                .report(item.span(), "without `rearrange` no axis has a name");
        };
        let DeValue::Table(table) = item.get_ref() else {
            return;
        };
        for (name, _) in table {
            if !pattern.value.names().any(|axis| axis == &**name.get_ref()) {
                let known = pattern.value.names();
                let problem = Diagnostic::unknown(name.span(), "axis", name.get_ref(), known);
                self.0.problems.push(problem);
            }
        }
    }

    fn range(&mut self, item: TomlItem<'a>, key: &str) -> Option<(Expr, Expr)> {
        match <[Expr; 2]>::try_from(self.exprs(item, key)) {
            Ok([begin, end]) => Some((begin, end)),
            Err(_) => {
                let message = format!("`{key}`: expected `[begin, end]`");
                self.0.report(item.span(), message);
                None
            }
        }
    }

    fn pattern(&mut self, item: TomlItem<'a>) -> Option<Spanned<Pattern>> {
        let text = self.0.text(item, "rearrange")?;
        match Pattern::parse(&text.value) {
            Ok(pattern) => Some(Spanned::new(pattern, text.span)),
            Err(message) => {
                self.0.report(text.span, message);
                None
            }
        }
    }

    fn exprs(&mut self, item: TomlItem<'a>, key: &str) -> Vec<Expr> {
        let DeValue::Array(items) = item.get_ref() else {
            return self.0.wrong(item, key, "an array").unwrap_or_default();
        };
        items.iter().filter_map(|item| self.0.expr(item)).collect()
    }
}
