//! Reads a definition as a whole, and its tables outside the stacks.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::reader::{DefinitionReader, EMPTY};
use crate::arch::definition::{
    ArchDef, CommonDefinitions, ContractUse, Head, IgnoreRules, IgnoredKey, Mode, Setting,
    TargetUse,
};
use crate::arch::diagnostic::Spanned;
use crate::arch::expr::Expr;
use crate::arch::table::{TableFields, TomlItem, ValueForm};

pub(super) const PARAMS: ValueForm = ValueForm::Map(&ValueForm::Either(&[
    ValueForm::Table("a parameter"),
    ValueForm::Value,
]));

impl<'a> DefinitionReader<'a> {
    /// The whole file, without the parts that have problems; `None` if a part is missing on which all others depend.
    pub(crate) fn definition(
        &mut self,
        root: &'a DeTable<'a>,
        common: &CommonDefinitions,
    ) -> Option<ArchDef> {
        let mut fields = TableFields::new(root, 0..0, "a definition");
        let names = self.definition_names(&mut fields);
        let mode = self.choice(&mut fields, "mode", &Mode::NAMES);
        let require = self.conditions(&mut fields);
        let mut params = common.params.clone();
        if let Some(item) = fields.take("params", PARAMS) {
            params.extend(self.params(item));
        }
        if let Some(item) = fields.take("assumptions", ValueForm::Tables("an assumption")) {
            params.extend(self.assumptions(item));
        }
        let resources = self.resources(&mut fields);
        let (write, embed) = match mode {
            Some(Mode::Tower) => (None, self.stage(&mut fields, "input", self.registry.input)),
            _ => self.embed(&mut fields),
        };
        let per_layer = self.registry.per_layer;
        let form = ValueForm::Table(per_layer.name);
        let per_layer = fields.take("per_layer_input", form).and_then(|item| {
            let table = self.table(item, "per_layer_input")?;
            self.whole_instance(table, item.span(), per_layer)
        });
        let target = self.target(&mut fields);
        let drafter = self.optional_text(&mut fields, "drafter");
        let stacks = self.stacks(&mut fields, common.slots_of_target.as_deref());
        let form = ValueForm::Table(self.registry.head.name);
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
            target,
            drafter,
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
    fn definition_names(&mut self, fields: &mut TableFields<'a>) -> Vec<String> {
        match fields.take_required("name", ValueForm::TEXT_OR_TEXTS) {
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

    fn variants(&mut self, fields: &mut TableFields<'a>) -> BTreeMap<String, String> {
        let entries = self.entries(fields, "variants", ValueForm::Map(&ValueForm::Text));
        entries
            .into_iter()
            .filter_map(|(name, item)| Some((name.value, self.text(item, "variants")?.value)))
            .collect()
    }

    fn conditions(&mut self, fields: &mut TableFields<'a>) -> Vec<Spanned<Expr>> {
        const CONDITIONS: ValueForm = ValueForm::List(&ValueForm::Condition);
        let form = ValueForm::Either(&[CONDITIONS, ValueForm::Condition]);
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

    /// The table `ignore`, added to what is already ignored. An array lists tensors.
    pub(super) fn ignore(
        &mut self,
        fields: &mut TableFields<'a>,
        known: IgnoreRules,
        is_common: bool,
    ) -> IgnoreRules {
        let mut ignore = known;
        let Some(item) = fields.take(
            "ignore",
            ValueForm::Either(&[ValueForm::Table("ignore"), ValueForm::Texts]),
        ) else {
            return ignore;
        };
        let mut tensors = Some(item);
        if let DeValue::Table(table) = item.get_ref() {
            let mut inner = TableFields::new(table, item.span(), "ignore");
            tensors = inner.take("tensors", ValueForm::Texts);
            for (key, reason) in self.entries(&mut inner, "keys", ValueForm::Map(&ValueForm::Text))
            {
                if let Some(reason) = self.reason(reason) {
                    ignore
                        .keys
                        .insert(key.value, IgnoredKey { reason, is_common });
                }
            }
            self.finish(inner);
        }
        let tensors = tensors.map(|item| self.texts(item, "ignore"));
        let tensors = tensors.into_iter().flatten().map(|name| name.value);
        ignore.tensors.extend(tensors);
        ignore
    }

    fn reason(&mut self, item: TomlItem<'a>) -> Option<String> {
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

    /// The mix that the table `embed` names, and the embedding with its other keys.
    fn embed(&mut self, fields: &mut TableFields<'a>) -> (Option<Setting>, Option<ContractUse>) {
        let contract = self.registry.embed;
        let item = fields.take("embed", ValueForm::Table(contract.name));
        let span = item.map_or(0..0, |item| item.span());
        let table = item.map_or(Some(&*EMPTY), |item| self.table(item, "embed"));
        let Some(table) = table else {
            return (None, None);
        };
        let mut inner = TableFields::new(table, span, contract.name);
        let write = self.optional_name(&mut inner, "write");
        (write, self.instance(inner, contract))
    }

    /// What a drafter reads of its target.
    fn target(&mut self, fields: &mut TableFields<'a>) -> Option<TargetUse> {
        const NUMBERS: ValueForm = ValueForm::List(&ValueForm::Number);
        let item = fields.take("target", ValueForm::Table("target"))?;
        let mut inner = TableFields::new(self.table(item, "target")?, item.span(), "target");
        let after = inner.take_required("after", NUMBERS);
        let after: Vec<TomlItem<'a>> = match after.map(|item| (item, item.get_ref())) {
            Some((item, DeValue::Array(items))) if self.is_short(item, items.len()) => {
                items.iter().collect()
            }
            Some((_, DeValue::Array(_))) => Vec::new(),
            Some((item, _)) => vec![item],
            None => Vec::new(),
        };
        if after.is_empty() {
            let problem = "a drafter reads at least one value: `after` lists numbers of layers";
            self.report(item.span(), problem);
        }
        let after = after
            .into_iter()
            .filter_map(|item| Some(Spanned::new(self.expr(item)?, item.span())));
        let after = after.collect();
        let normed = inner.take("normed", ValueForm::Condition);
        let normed = normed.and_then(|item| self.setting(item));
        let width = self.optional_number(&mut inner, "width");
        let tokens = self.optional_text(&mut inner, "tokens");
        let distances = inner.take("distances", ValueForm::Condition);
        let distances = distances.and_then(|item| self.setting(item));
        let from_first = inner.take("from_first", ValueForm::Condition);
        let from_first = from_first.and_then(|item| self.setting(item));
        let block = self.optional_number(&mut inner, "block");
        let mask = self.optional_number(&mut inner, "mask");
        let heads = self.optional_number(&mut inner, "heads");
        if block.is_some() != mask.is_some() {
            self.report(item.span(), "a drafter of blocks has `block` and `mask`");
        }
        self.finish(inner);
        Some(TargetUse {
            after,
            normed,
            width,
            block,
            mask,
            from_first,
            heads,
            tokens,
            distances,
            span: item.span(),
        })
    }

    fn head(&mut self, item: TomlItem<'a>) -> Option<Head> {
        let contract = self.registry.head;
        let mut fields = TableFields::new(self.table(item, "head")?, item.span(), contract.name);
        let read = self.optional_name(&mut fields, "read");
        let norm = self.optional_name(&mut fields, "norm");
        Some(Head {
            read,
            norm,
            unit: self.instance(fields, contract)?,
        })
    }
}

/// The comment lines at the head of a file, without `#` and without a schema line.
fn head_comment(source: &str) -> String {
    let lines: Vec<&str> = source
        .lines()
        .take_while(|line| line.starts_with('#'))
        .filter(|line| !line.starts_with("#:"))
        .map(|line| line.trim_start_matches('#').trim())
        .collect();
    lines.join("\n").trim().to_owned()
}
