//! Mixes: which type each tensor of a model gets, as rules in a TOML file (`mixes/named.toml` says what they are made of).
//!
//! A rule sees the name of a tensor, its shape, its place among the tensors of its class and the numbers of the model.
//! Whether a tensor may be quantised at all is not decided here.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use super::importance::Importance;
use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::fits_pattern;
use lab_base::ggml::{MADE_TYPES, needs_importance};
use lab_base::weights::{Metadata, TensorInfo, TensorType, Weights};

/// The types of a model's tensors.
#[derive(Clone, Debug)]
pub struct Mix {
    name: String,
    /// The type of the tensors that no rule names.
    base: TensorType,
    /// `general.file_type` of a file with this mix.
    file_type: u32,
    /// Types that need the importance of columns in this mix.
    needs: Vec<TensorType>,
    rules: Arc<Rules>,
    importance: Option<Arc<Importance>>,
}

/// What a mix does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeChoice {
    /// The tensor keeps its type.
    Stored,
    Type(TensorType),
}

#[derive(Debug, Default)]
struct Rules {
    classes: Vec<(String, Vec<String>)>,
    names: BTreeMap<String, Expr>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    mixes: Vec<String>,
    classes: Vec<String>,
    tensors: Vec<String>,
    when: Option<Expr>,
    choice: TypeChoice,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixFile {
    base: Option<String>,
    #[serde(rename = "type")]
    ty: Option<String>,
    #[serde(default)]
    class: BTreeMap<String, String>,
    #[serde(default)]
    names: BTreeMap<String, String>,
    #[serde(default)]
    alias: BTreeMap<String, String>,
    #[serde(default)]
    mix: BTreeMap<String, MixRow>,
    #[serde(default)]
    rule: Vec<RuleRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixRow {
    #[serde(rename = "type")]
    ty: String,
    file_type: u32,
    #[serde(default)]
    needs: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRow {
    #[serde(default)]
    mixes: String,
    #[serde(default)]
    class: String,
    #[serde(default)]
    tensors: String,
    when: Option<String>,
    #[serde(rename = "type")]
    ty: String,
}

/// The mixes of `mixes/named.toml`.
struct Named {
    mixes: BTreeMap<String, Mix>,
    alias: BTreeMap<String, String>,
    rules: Arc<Rules>,
}

static NAMED: LazyLock<Named> = LazyLock::new(|| {
    let text = include_str!("../../../../mixes/named.toml");
    let file: MixFile = toml::from_str(text).expect("named.toml");
    let rules = Arc::new(Rules::new(&file, None).expect("named.toml"));
    let mix = |(name, row): (&String, &MixRow)| {
        let needs = words(&row.needs).map(|ty| ty.parse().expect("a type"));
        let base: TensorType = row.ty.parse().expect("a type");
        let mix = Mix {
            name: name.clone(),
            base,
            file_type: row.file_type,
            needs: needs.collect(),
            // Plain types have no blocks that a head or a table could do without.
            rules: match base.is_plain() {
                true => Arc::default(),
                false => rules.clone(),
            },
            importance: None,
        };
        (name.clone(), mix)
    };
    Named {
        mixes: file.mix.iter().map(mix).collect(),
        alias: file.alias,
        rules,
    }
});

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

impl Mix {
    /// The mix of this name, in capitals or not; a type such as `q4_k` is the mix that llama-quantize calls so.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = NAMED.alias.get(&name).unwrap_or(&name);
        NAMED.mixes.get(name).cloned()
    }

    /// The names of all mixes.
    pub fn names() -> Vec<&'static str> {
        NAMED.mixes.keys().map(String::as_str).collect()
    }

    /// The mix of a file (`bench convert --mix`).
    ///
    /// # Errors
    /// The text breaks a rule of the form, or names a type, class or mix that there is not.
    pub fn of_file(name: &str, text: &str) -> Result<Self, String> {
        let file: MixFile = toml::from_str(text).map_err(|error| error.to_string())?;
        if !file.mix.is_empty() || !file.alias.is_empty() {
            return Err("[mix] and [alias] are tables of the program's own file".into());
        }
        let base = file.base.as_deref().map(Self::from_str).transpose()?;
        let ty = file.ty.as_deref().map(made_type).transpose()?;
        let mut mix = match (base, ty) {
            (Some(base), None) => base,
            (None, Some(ty)) => Self {
                base: ty,
                needs: Vec::new(),
                rules: Arc::new(Rules {
                    rules: Vec::new(),
                    classes: NAMED.rules.classes.clone(),
                    names: NAMED.rules.names.clone(),
                }),
                ..Self::from(ty)
            },
            _ => return Err("expected either `type` or `base`, the name of a mix".into()),
        };
        let inherited = mix.rules.clone();
        let own = mix.name.clone();
        mix.rules = Arc::new(Rules::new(&file, Some((&inherited, &own)))?);
        mix.name = name.to_owned();
        Ok(mix)
    }

    /// A mix that lists tensors with their types; the others keep theirs.
    pub fn of_types<'t>(
        name: &str,
        types: impl IntoIterator<Item = (&'t str, TensorType)>,
    ) -> Self {
        let rule = |tensors, choice| Rule {
            mixes: Vec::new(),
            classes: Vec::new(),
            tensors,
            when: None,
            choice,
        };
        let mut n_of: BTreeMap<TensorType, usize> = BTreeMap::new();
        let mut rules = Rules::default();
        for (name, ty) in types {
            *n_of.entry(ty).or_default() += 1;
            rules
                .rules
                .push(rule(vec![name.to_owned()], TypeChoice::Type(ty)));
        }
        rules.rules.push(rule(Vec::new(), TypeChoice::Stored));
        let most = n_of.into_iter().max_by_key(|(_, n)| *n);
        let base = most.map_or(TensorType::Q8_0, |(ty, _)| ty);
        Self {
            name: name.to_owned(),
            needs: Vec::new(),
            rules: Arc::new(rules),
            ..Self::from(base)
        }
    }

    /// The same mix, made with the importance of columns.
    #[must_use]
    pub fn with_importance(self, importance: Option<Arc<Importance>>) -> Self {
        Self { importance, ..self }
    }

    pub fn importance(&self) -> Option<&Arc<Importance>> {
        self.importance.as_ref()
    }

    /// The type of the tensors that no rule names.
    pub fn base(&self) -> TensorType {
        self.base
    }

    pub(super) fn file_type(&self) -> u32 {
        self.file_type
    }

    /// Whether a tensor becomes this type only with the importance of its columns: without, its values would be of no use.
    pub(super) fn needs_importance(&self, tensor: &str, ty: TensorType) -> bool {
        let low = is_low(ty) || self.needs.contains(&ty);
        let is_free = matches!(NAMED.rules.class(tensor), "output" | "table");
        needs_importance(ty) || low && !is_free
    }

    /// What becomes of the tensors that `may` be quantised, by name.
    ///
    /// # Errors
    /// A condition cannot be evaluated; the message names the rule.
    pub(super) fn choices<'w>(
        &self,
        weights: &'w Weights,
        may: impl Fn(&TensorInfo) -> bool,
    ) -> Result<HashMap<&'w str, TypeChoice>, String> {
        let model = ModelNumbers::new(self, weights);
        let mut tensors: Vec<_> = weights.tensors().iter().collect();
        tensors.sort_by_key(|tensor| (layer(&tensor.name), &tensor.name));
        let mut n: HashMap<&str, i64> = HashMap::new();
        for tensor in &tensors {
            *n.entry(self.rules.class(&tensor.name)).or_default() += 1;
        }
        let mut i: HashMap<&str, i64> = HashMap::new();
        let mut found = HashMap::new();
        for tensor in tensors.into_iter().filter(|tensor| may(tensor)) {
            let class = self.rules.class(&tensor.name);
            let at = i.entry(class).or_default();
            let scope = TensorScope {
                model: &model,
                tensor,
                class,
                i: *at,
                n: n[class],
                known: RefCell::default(),
            };
            *at += 1;
            found.insert(tensor.name.as_str(), self.choose(&scope)?);
        }
        Ok(found)
    }

    fn choose(&self, scope: &TensorScope<'_>) -> Result<TypeChoice, String> {
        for (at, rule) in self.rules.rules.iter().enumerate() {
            let has =
                |list: &[String], item: &str| list.is_empty() || list.iter().any(|l| l == item);
            let fits = |pattern: &String| fits_pattern(pattern, &scope.tensor.name);
            if !has(&rule.mixes, &self.name)
                || !has(&rule.classes, scope.class)
                || !(rule.tensors.is_empty() || rule.tensors.iter().any(fits))
            {
                continue;
            }
            let holds = match &rule.when {
                None => true,
                Some(when) => match when.evaluate(scope) {
                    Ok(Value::Bool(holds)) => holds,
                    Ok(other) => {
                        return Err(format!(
                            "rule {}: `{when}` is {other}, expected true or false",
                            at + 1
                        ));
                    }
                    Err(message) => return Err(format!("rule {}: `{when}`: {message}", at + 1)),
                },
            };
            if holds {
                return Ok(rule.choice);
            }
        }
        Ok(TypeChoice::Type(self.base))
    }
}

impl From<TensorType> for Mix {
    /// The mix that is called like the type; a type that cannot be made keeps every tensor as it is stored.
    fn from(ty: TensorType) -> Self {
        Self::named(ty.name()).unwrap_or_else(|| Self {
            name: ty.name().to_owned(),
            base: ty,
            file_type: 0,
            needs: Vec::new(),
            rules: Arc::default(),
            importance: None,
        })
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::named(name).ok_or_else(|| {
            let names = Self::names().join(", ");
            format!("there is no mix `{name}`; there are {names}")
        })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn made_type(text: &str) -> Result<TensorType, String> {
    let ty: TensorType = text.parse()?;
    let is_plain = matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    match is_plain || MADE_TYPES.contains(&ty) {
        true => Ok(ty),
        false => Err(format!("{ty} cannot be made of values")),
    }
}

impl Rules {
    /// The rules of a file, followed by those that it inherits from a mix of that name.
    fn new(file: &MixFile, inherited: Option<(&Self, &str)>) -> Result<Self, String> {
        let parse = |text: &str, place: &str| {
            let parsed = Expr::parse(text, 0);
            parsed.map_err(|problem| format!("{place}: `{text}`: {}", problem.message))
        };
        let mut all = Self::default();
        for (name, patterns) in &file.class {
            let patterns = words(patterns).map(str::to_owned).collect();
            all.classes.push((name.clone(), patterns));
        }
        for (name, text) in &file.names {
            let expr = parse(text, &format!("[names] {name}"))?;
            all.names.insert(name.clone(), expr);
        }
        if let Some((inherited, _)) = inherited {
            let classes = inherited.classes.iter();
            let is_new = |(name, _): &&(String, _)| !file.class.contains_key(name);
            all.classes.extend(classes.filter(is_new).cloned());
            for (name, expr) in &inherited.names {
                all.names
                    .entry(name.clone())
                    .or_insert_with(|| expr.clone());
            }
        }
        for (at, row) in file.rule.iter().enumerate() {
            let place = format!("rule {}", at + 1);
            let classes: Vec<_> = words(&row.class).map(str::to_owned).collect();
            let is_known = |class: &&String| all.classes.iter().any(|(known, _)| known == *class);
            if let Some(unknown) = classes.iter().find(|class| !is_known(class)) {
                let known: Vec<_> = all.classes.iter().map(|(name, _)| name.as_str()).collect();
                let known = known.join(", ");
                return Err(format!(
                    "{place}: there is no class `{unknown}`; there are: {known}"
                ));
            }
            if inherited.is_some() && !row.mixes.is_empty() {
                return Err(format!("{place}: `mixes` is for the program's own file"));
            }
            let choice = match row.ty.as_str() {
                "stored" => TypeChoice::Stored,
                ty => TypeChoice::Type(made_type(ty).map_err(|error| format!("{place}: {error}"))?),
            };
            let when = row.when.as_ref().map(|text| parse(text, &place));
            all.rules.push(Rule {
                mixes: words(&row.mixes).map(str::to_owned).collect(),
                classes,
                tensors: words(&row.tensors).map(str::to_owned).collect(),
                when: when.transpose()?,
                choice,
            });
        }
        if let Some((inherited, mix)) = inherited {
            let is_of = |rule: &&Rule| rule.mixes.is_empty() || rule.mixes.iter().any(|m| m == mix);
            let of_mix = inherited.rules.iter().filter(is_of).cloned();
            all.rules.extend(of_mix.map(|rule| Rule {
                mixes: Vec::new(),
                ..rule
            }));
        }
        Ok(all)
    }

    /// The class of a tensor; the empty text if it has none.
    fn class(&self, tensor: &str) -> &str {
        let fits = |patterns: &[String]| patterns.iter().any(|of| fits_pattern(of, tensor));
        let found = self.classes.iter().find(|(_, patterns)| fits(patterns));
        found.map_or("", |(name, _)| name)
    }
}

/// Whether values in a type are of little use without the importance of their columns.
pub(super) fn is_low(ty: TensorType) -> bool {
    use TensorType as T;
    needs_importance(ty) || matches!(ty, T::IQ1_M | T::IQ2_S | T::IQ3_XXS)
}

/// The layer of a tensor `blk.N.…`; -1 for others.
pub(super) fn layer(name: &str) -> i64 {
    let number = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next());
    number.and_then(|text| text.parse().ok()).unwrap_or(-1)
}

/// The numbers of a model that conditions use.
struct ModelNumbers<'m> {
    rules: &'m Rules,
    base: TensorType,
    arch: String,
    n_layer: i64,
    n_expert: i64,
    n_gqa: i64,
    is_tied: bool,
    has_importance: bool,
}

impl<'m> ModelNumbers<'m> {
    fn new(mix: &'m Mix, weights: &Weights) -> Self {
        let metadata = weights.metadata();
        let arch = metadata.str("general.architecture").unwrap_or_default();
        let number = |key: &str| first_number(metadata, &format!("{arch}.{key}"));
        let heads = number("attention.head_count").unwrap_or(0);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
        Self {
            rules: &mix.rules,
            base: mix.base,
            arch: arch.to_owned(),
            n_layer: number("block_count").unwrap_or(0),
            n_expert: number("expert_count").unwrap_or(0),
            n_gqa: heads.checked_div(kv_heads).unwrap_or(0),
            is_tied: weights.tensor("output.weight").is_none(),
            has_importance: mix.importance.is_some(),
        }
    }
}

/// A number of the metadata; of an array, with a number for each layer, the first one.
fn first_number(metadata: &Metadata, key: &str) -> Option<i64> {
    match metadata.get(key)? {
        lab_base::weights::Value::Array(all) => all.get(0)?.as_i64(),
        value => value.as_i64(),
    }
}

/// What the conditions for a tensor see.
struct TensorScope<'a> {
    model: &'a ModelNumbers<'a>,
    tensor: &'a TensorInfo,
    class: &'a str,
    i: i64,
    n: i64,
    /// Values of the file's names; none while one is computed.
    known: RefCell<HashMap<String, Option<Value>>>,
}

impl Scope for TensorScope<'_> {
    fn name(&self, name: &str, _whole: bool) -> Result<Value, String> {
        let model = self.model;
        let shape = &self.tensor.shape;
        let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Ok(match name {
            "i" => Value::Int(self.i),
            "n" => Value::Int(self.n),
            "il" => Value::Int(layer(&self.tensor.name)),
            "n_layer" => Value::Int(model.n_layer),
            "n_expert" => Value::Int(model.n_expert),
            "n_gqa" => Value::Int(model.n_gqa),
            "row" => Value::Int(int(shape[0])),
            "block" => Value::Int(int(model.base.block_len())),
            "matrices" => Value::Int(int(shape.get(2).copied().unwrap_or(1))),
            "class" => Value::Str(self.class.to_owned()),
            "arch" => Value::Str(model.arch.clone()),
            "tied" => Value::Bool(model.is_tied),
            "imatrix" => Value::Bool(model.has_importance),
            _ => {
                let expr = model.rules.names.get(name);
                let expr = expr.ok_or_else(|| format!("there is no name `{name}`"))?;
                if let Some(known) = self.known.borrow().get(name) {
                    let known = known.clone();
                    return known.ok_or_else(|| format!("`{name}` is defined by itself"));
                }
                self.known.borrow_mut().insert(name.to_owned(), None);
                let value = expr.evaluate(self)?;
                let known = Some(value.clone());
                self.known.borrow_mut().insert(name.to_owned(), known);
                value
            }
        })
    }
}
