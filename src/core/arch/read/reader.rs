//! The reader of tables: its state, and the settings that several kinds of tables share.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use toml::de::DeTable;

use crate::arch::contract::{Contract, Registry};
use crate::arch::definition::{ContractUse, Setting};
use crate::arch::diagnostic::Diagnostic;
use crate::arch::table::{KeySpec, TableFields, TableReader, TomlItem, ValueForm};

/// The table that stands for an omitted stage.
pub(super) static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);

/// Reads TOML tables into parts of a definition and collects problems.
pub(crate) struct DefinitionReader<'a> {
    table: TableReader<'a>,
    pub(super) registry: &'static Registry,
}

impl<'a> Deref for DefinitionReader<'a> {
    type Target = TableReader<'a>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl DerefMut for DefinitionReader<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.table
    }
}

impl<'a> DefinitionReader<'a> {
    pub(crate) fn problems(self) -> Vec<Diagnostic> {
        self.table.problems
    }

    /// The keys of every kind of table that was read.
    pub(crate) fn kinds(self) -> BTreeMap<&'static str, Vec<KeySpec>> {
        self.table.kinds
    }

    pub(crate) fn new(source: &'a str, registry: &'static Registry) -> Self {
        Self {
            table: TableReader::new(source),
            registry,
        }
    }

    pub(super) fn optional_number(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Option<Setting> {
        let item = fields.take(key, ValueForm::Number)?;
        self.setting(item)
    }

    pub(super) fn optional_name(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Option<Setting> {
        let item = fields.take(key, ValueForm::Name)?;
        self.name(item)
    }

    pub(super) fn setting(&mut self, item: TomlItem<'a>) -> Option<Setting> {
        Some(Setting {
            expr: self.expr(item)?,
            span: Some(item.span()),
        })
    }

    pub(super) fn name(&mut self, item: TomlItem<'a>) -> Option<Setting> {
        Some(Setting {
            expr: self.table.name(item)?,
            span: Some(item.span()),
        })
    }

    pub(super) fn stage(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
        contract: &'static Contract,
    ) -> Option<ContractUse> {
        match fields.take(key, ValueForm::Table(contract.name)) {
            Some(item) => {
                let table = self.table(item, key)?;
                self.whole_instance(table, item.span(), contract)
            }
            None => self.whole_instance(&EMPTY, 0..0, contract),
        }
    }
}

pub(crate) fn syntax_problem(error: &toml::de::Error) -> Diagnostic {
    Diagnostic::new(error.span().unwrap_or(0..0), error.message().to_owned())
}
