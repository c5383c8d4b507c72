//! TOML text to a definition: keys, types and shapes of tables.
//!
//! Reading goes on after a problem, so that all of them are reported together. What needs the
//! definition as a whole (names, cycles, types of expressions) is `check`'s work.

mod instances;
mod params;
mod weights;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock};

use toml::de::{DeTable, DeValue};

use crate::arch::check;
use crate::arch::contract::{Contract, Registry};
use crate::arch::definition::{
    ArchDef, Branch, Common, Head, Ignore, Ignored, Instance, Join, Mode, Reads, Setting, Slot,
    Stack,
};
use crate::arch::diagnostic::{Diagnostic, Spanned};
use crate::arch::expr::Expr;
use crate::arch::table::{Fields, Form, Item, Known, TableReader};

/// The place of a stage that a definition omits.
static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);

/// Parameters by name.
const PARAMS: Form = Form::Map(&Form::Either(&[Form::Table("a parameter"), Form::Value]));

/// Reads TOML tables into parts of a definition and collects problems.
pub(super) struct Reader<'a> {
    table: TableReader<'a>,
    registry: &'static Registry,
}

impl<'a> Deref for Reader<'a> {
    type Target = TableReader<'a>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl DerefMut for Reader<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.table
    }
}

impl<'a> Reader<'a> {
    pub(super) fn problems(self) -> Vec<Diagnostic> {
        self.table.problems
    }

    /// The keys of every kind of table that was read.
    pub(super) fn kinds(self) -> BTreeMap<&'static str, Vec<Known>> {
        self.table.kinds
    }

    pub(super) fn new(source: &'a str, registry: &'static Registry) -> Self {
        Self {
            table: TableReader::new(source),
            registry,
        }
    }

    /// The whole file, without the parts that have problems; `None` if a part is missing on which all
    /// others depend.
    pub(super) fn definition(&mut self, root: &'a DeTable<'a>, common: &Common) -> Option<ArchDef> {
        let mut fields = Fields::new(root, 0..0, "a definition");
        let names = self.definition_names(&mut fields);
        let mode = self.choice(&mut fields, "mode", &Mode::NAMES);
        let require = self.conditions(&mut fields);
        let mut params = common.params.clone();
        if let Some(item) = fields.take("params", PARAMS) {
            params.extend(self.params(item));
        }
        if let Some(item) = fields.take("assumptions", Form::Tables("an assumption")) {
            params.extend(self.assumptions(item));
        }
        let resources = self.resources(&mut fields);
        let (write, embed) = self.embed(&mut fields);
        let per_layer = self.registry.per_layer;
        let form = Form::Table(per_layer.name);
        let per_layer = fields.take("per_layer_input", form).and_then(|item| {
            let table = self.table(item, "per_layer_input")?;
            self.whole_instance(table, item.span(), per_layer)
        });
        let stacks = self.stacks(&mut fields);
        let form = Form::Table(self.registry.head.name);
        let head = fields.take("head", form).and_then(|item| self.head(item));
        let pool = self.stage(&mut fields, "pool", self.registry.pool);
        let ignore = self.ignore(&mut fields, common.ignore.clone(), false);
        let variants = self.variants(&mut fields);
        self.finish(fields);
        Some(ArchDef {
            name: names.first()?.clone(),
            names,
            notes: head_comment(self.source),
            mode: mode.unwrap_or(Mode::Causal),
            params,
            resources,
            defaults: common.resources.clone(),
            embed: embed?,
            write,
            per_layer,
            stacks,
            head,
            pool: pool?,
            require,
            ignore,
            variants,
            text: Arc::default(),
        })
    }

    /// The names of the architectures that the definition describes: a string or an array of strings.
    fn definition_names(&mut self, fields: &mut Fields<'a>) -> Vec<String> {
        match fields.take_required("name", Form::TEXT_OR_TEXTS) {
            Some(item) if matches!(item.get_ref(), DeValue::Array(_)) => {
                let names = self.texts(item, "name");
                if names.is_empty() {
                    self.report(item.span(), "a definition has at least one name");
                }
                names.into_iter().map(|name| name.value).collect()
            }
            Some(item) => {
                let name = self.text(item, "name");
                name.into_iter().map(|name| name.value).collect()
            }
            None => {
                self.report(0..0, "missing key `name` (required in the definition)");
                Vec::new()
            }
        }
    }

    /// The table `variants`: texts by names.
    fn variants(&mut self, fields: &mut Fields<'a>) -> BTreeMap<String, String> {
        let item = fields.take("variants", Form::Map(&Form::Text));
        let table = item.and_then(|item| self.table(item, "variants"));
        let entries = table.into_iter().flatten().filter_map(|(name, item)| {
            let text = self.text(item, "variants")?;
            Some((name.get_ref().to_string(), text.value))
        });
        entries.collect()
    }

    /// The conditions of `require`.
    fn conditions(&mut self, fields: &mut Fields<'a>) -> Vec<Spanned<Expr>> {
        const CONDITIONS: Form = Form::List(&Form::Condition);
        let form = Form::Either(&[CONDITIONS, Form::Condition]);
        let items = fields
            .take("require", form)
            .map(|item| match item.get_ref() {
                DeValue::Array(items) if !self.is_short(item, items.len()) => Vec::new(),
                DeValue::Array(items) => items.iter().collect(),
                _ => vec![item],
            });
        let items = items.into_iter().flatten();
        items
            .filter_map(|item| Some(Spanned::new(self.expr(item)?, item.span())))
            .collect()
    }

    /// The table `ignore`, added to what is ignored already. An array names tensors.
    fn ignore(&mut self, fields: &mut Fields<'a>, known: Ignore, is_common: bool) -> Ignore {
        let mut ignore = known;
        let Some(item) = fields.take(
            "ignore",
            Form::Either(&[Form::Table("ignore"), Form::Texts]),
        ) else {
            return ignore;
        };
        let mut tensors = Some(item);
        if let DeValue::Table(table) = item.get_ref() {
            let mut inner = Fields::new(table, item.span(), "ignore");
            tensors = inner.take("tensors", Form::Texts);
            let keys = inner.take("keys", Form::Map(&Form::Text));
            let keys = keys.and_then(|keys| self.table(keys, "keys"));
            for (key, reason) in keys.into_iter().flatten() {
                if let Some(reason) = self.reason(reason) {
                    let of_key = Ignored { reason, is_common };
                    ignore.keys.insert(key.get_ref().to_string(), of_key);
                }
            }
            self.finish(inner);
        }
        let tensors = tensors.map(|item| self.texts(item, "ignore"));
        let tensors = tensors.into_iter().flatten().map(|name| name.value);
        ignore.tensors.extend(tensors);
        ignore
    }

    fn reason(&mut self, item: Item<'a>) -> Option<String> {
        let reason = self.text(item, "keys")?;
        if reason.value.trim().is_empty() {
            self.report(
                reason.span,
                "an ignored key has a reason: why it does not matter",
            );
            return None;
        }
        Some(reason.value)
    }

    fn optional_number(&mut self, fields: &mut Fields<'a>, key: &'static str) -> Option<Setting> {
        let item = fields.take(key, Form::Number)?;
        self.setting(item)
    }

    fn optional_name(&mut self, fields: &mut Fields<'a>, key: &'static str) -> Option<Setting> {
        let item = fields.take(key, Form::Name)?;
        self.name(item)
    }

    fn setting(&mut self, item: Item<'a>) -> Option<Setting> {
        Some(Setting {
            expr: self.expr(item)?,
            span: Some(item.span()),
        })
    }

    fn name(&mut self, item: Item<'a>) -> Option<Setting> {
        Some(Setting {
            expr: self.table.name(item)?,
            span: Some(item.span()),
        })
    }

    fn stage(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
        contract: &'static Contract,
    ) -> Option<Instance> {
        match fields.take(key, Form::Table(contract.name)) {
            Some(item) => {
                let table = self.table(item, key)?;
                self.whole_instance(table, item.span(), contract)
            }
            None => self.whole_instance(&EMPTY, 0..0, contract),
        }
    }

    /// The mix that the table `embed` names, and what else it has.
    fn embed(&mut self, fields: &mut Fields<'a>) -> (Option<Setting>, Option<Instance>) {
        let contract = self.registry.embed;
        let item = fields.take("embed", Form::Table(contract.name));
        let span = item.map_or(0..0, |item| item.span());
        let table = item.map_or(Some(&*EMPTY), |item| self.table(item, "embed"));
        let Some(table) = table else {
            return (None, None);
        };
        let mut inner = Fields::new(table, span, contract.name);
        let write = self.optional_name(&mut inner, "write");
        (write, self.instance(inner, contract))
    }

    fn head(&mut self, item: Item<'a>) -> Option<Head> {
        let contract = self.registry.head;
        let mut fields = Fields::new(self.table(item, "head")?, item.span(), contract.name);
        let read = self.optional_name(&mut fields, "read");
        let norm = self.optional_name(&mut fields, "norm");
        Some(Head {
            read,
            norm,
            unit: self.instance(fields, contract)?,
        })
    }

    fn stacks(&mut self, fields: &mut Fields<'a>) -> Vec<Stack> {
        let Some(item) = fields.take_required("stack", Form::List(&Form::Table("a stack"))) else {
            self.report(0..0, "the definition has no `[[stack]]`");
            return Vec::new();
        };
        let mut stacks: Vec<Stack> = Vec::new();
        for (table, span) in self.tables(item, "stack") {
            let mut inner = Fields::new(table, span.clone(), "a stack");
            let name = self.optional_text(&mut inner, "name");
            let prefix = self.optional_text(&mut inner, "prefix");
            let count = self.optional_expr(&mut inner, "count", Form::Number);
            let il = self.optional_number(&mut inner, "il");
            let reads = self.choice(&mut inner, "reads", &Reads::NAMES);
            let slots = match inner.take_required("slot", Form::List(&Form::Table("a slot"))) {
                Some(item) => self.slots(item),
                None => {
                    self.report(
                        inner.span.clone(),
                        "a stack has at least one `[[stack.slot]]`",
                    );
                    Vec::new()
                }
            };
            self.finish(inner);
            stacks.push(Stack {
                name_span: name
                    .as_ref()
                    .map_or_else(|| span.clone(), |n| n.span.clone()),
                name: name.map_or_else(|| "layers".into(), |n| n.value),
                prefix_span: prefix.as_ref().map_or(span, |p| p.span.clone()),
                prefix: prefix.map_or_else(|| "blk.{il}.".into(), |p| p.value),
                count: count.unwrap_or_else(|| {
                    Expr::parse("n_layer", 0)
                        .expect("the default number of layers is an expression")
                }),
                il,
                reads: reads.unwrap_or(Reads::Tokens),
                slots,
            });
        }
        stacks
    }

    fn slots(&mut self, item: Item<'a>) -> Vec<Slot> {
        let (mut slots, mut names) = (Vec::new(), Names::default());
        for (table, span) in self.tables(item, "slot") {
            let mut fields = Fields::new(table, span.clone(), "a slot");
            let name = self.optional_text(&mut fields, "name");
            let when = self.optional_expr(&mut fields, "when", Form::Condition);
            let read = self.optional_name(&mut fields, "read");
            let write = self.optional_name(&mut fields, "write");
            let from = self.optional_text(&mut fields, "from");
            let pre = self.optional_name(&mut fields, "pre");
            let post = self.optional_name(&mut fields, "post");
            let after = self.optional_name(&mut fields, "after");
            let scale = self.optional_number(&mut fields, "scale");
            let joins = [("add", Join::Add), ("set", Join::Set)];
            let join = self.choice(&mut fields, "join", &joins);
            let branches = match fields.take_required("branch", Form::List(&Form::Branch)) {
                Some(item) => self.branches(item),
                None => {
                    self.report(span.clone(), "a slot has at least one branch");
                    Vec::new()
                }
            };
            self.finish(fields);
            self.named_once(name.as_ref(), "slots", &names);
            let name = name
                .map(|n| n.value)
                .or_else(|| branches.first().map(|b| b.name.clone()));
            let name = names.unique(name.unwrap_or_default());
            slots.push(Slot {
                name,
                span,
                when,
                read,
                from,
                pre,
                branches,
                post,
                scale,
                join: join.unwrap_or(Join::Add),
                after,
                write,
            });
        }
        slots
    }

    fn branches(&mut self, item: Item<'a>) -> Vec<Branch> {
        let (mut branches, mut names) = (Vec::new(), Names::default());
        for (table, span) in self.tables(item, "branch") {
            let mut fields = Fields::new(table, span.clone(), "a branch");
            let name = self.optional_text(&mut fields, "name");
            let when = self.optional_expr(&mut fields, "when", Form::Condition);
            let from = self.optional_text(&mut fields, "from");
            let side = self.optional_text(&mut fields, "side");
            let pre = self.optional_name(&mut fields, "pre");
            let post = self.optional_name(&mut fields, "post");
            let factor = self.optional_number(&mut fields, "factor");
            let save = self.optional_text(&mut fields, "save");
            let Some(block) = self.required_text(&mut fields, "block") else {
                continue;
            };
            let Some(contract) = self.registry.block(&block.value) else {
                let known = self.registry.blocks.iter().map(|c| c.name);
                self.problems.push(Diagnostic::unknown(
                    block.span,
                    "block",
                    &block.value,
                    known,
                ));
                continue;
            };
            fields.kind = contract.name;
            let Some(instance) = self.instance(fields, contract) else {
                continue;
            };
            self.named_once(name.as_ref(), "branches", &names);
            let name = names.unique(name.map_or_else(|| contract.name.to_owned(), |n| n.value));
            branches.push(Branch {
                name,
                when,
                from,
                side,
                pre,
                post,
                factor,
                save,
                block: instance,
            });
        }
        branches
    }

    /// Reports a name that is given twice, since two values would have one path.
    fn named_once(&mut self, name: Option<&Spanned<String>>, what: &str, names: &Names) {
        if let Some(name) = name
            && names.0.contains_key(&name.value)
        {
            self.report(
                name.span.clone(),
                format!("two {what} are named `{}`", name.value),
            );
        }
    }
}

/// The parameters, resources and ignored keys of all definitions, from `common.toml`.
pub(super) fn common(source: &str, registry: &'static Registry) -> Result<Common, Vec<Diagnostic>> {
    let (root, errors) = DeTable::parse_recoverable(source);
    let mut reader = Reader::new(source, registry);
    reader.problems.extend(errors.iter().map(syntax_problem));
    let mut common = Common::default();
    let mut fields = Fields::new(root.get_ref(), 0..0, "the common part");
    if let Some(item) = fields.take("params", PARAMS) {
        common.params = reader.params(item);
    }
    let mut resources = reader.plain_resources();
    resources.extend(reader.resources(&mut fields));
    common.resources = Arc::new(resources);
    common.ignore = reader.ignore(&mut fields, Ignore::default(), true);
    reader.finish(fields);
    let mut problems = reader.problems();
    if problems.is_empty() {
        problems = check::check_common(&common);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    for param in common.params.values_mut() {
        param.span = None;
    }
    Ok(common)
}

/// A syntax error of the TOML itself.
pub(crate) fn syntax_problem(error: &toml::de::Error) -> Diagnostic {
    Diagnostic::new(error.span().unwrap_or(0..0), error.message().to_owned())
}

/// Names that are taken, each with the number that the next one of it gets.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    /// The name if it is free, else with a number.
    fn unique(&mut self, name: String) -> String {
        let Some(next) = self.0.get(&name).copied() else {
            self.0.insert(name.clone(), 2);
            return name;
        };
        let free = |n: &usize| !self.0.contains_key(&format!("{name}_{n}"));
        let n = (next..).find(free).unwrap_or(next);
        let numbered = format!("{name}_{n}");
        self.0.insert(name, n + 1);
        self.0.insert(numbered.clone(), 2);
        numbered
    }
}

/// The comment lines at the head of a file, without their marks and without a schema line.
fn head_comment(source: &str) -> String {
    let lines: Vec<&str> = source
        .lines()
        .take_while(|line| line.starts_with('#'))
        .filter(|line| !line.starts_with("#:"))
        .map(|line| line.trim_start_matches('#').trim())
        .collect();
    lines.join("\n").trim().to_owned()
}
