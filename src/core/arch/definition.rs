//! A definition as read from TOML: expressions are parsed, names are not yet resolved.
//!
//! These values are inert. `read` makes them from text, `check` finds their problems, and the planner resolves them to
//! numbers. The residual wiring of every layer is the slot formula:
//!
//! ```text
//! x  = read ? read(X) : x    X: several hidden states, where a model has them
//! in = from ? tap : x
//! h  = pre(in)
//! y  = sum over active branches of  factor * post_b(block(pre_b(from_b ? tap : h), side ? tap))
//! y  = scale * post(y)
//! x  = join(x, y)            add | set | append | keep
//! x  = after(x)
//! X  = write ? write(X, x) : X
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contract::{Contract, Presence, Resource};
use super::diagnostic::{Span, Spanned};
use super::expr::Expr;

/// The mode of execution of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Causal attention; completions grow at the end.
    Causal,
    /// Bidirectional attention; completions by text diffusion.
    Diffusion,
    /// Bidirectional attention; the result is an embedding.
    Encoder,
    /// Rows of numbers in place of tokens; the results are rows for another model.
    Tower,
}

impl Mode {
    /// Names of the modes in the TOML.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("causal", Self::Causal),
        ("diffusion", Self::Diffusion),
        ("encoder", Self::Encoder),
        ("tower", Self::Tower),
    ];

    /// Name of the mode in the TOML.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, mode)| *mode == self)
            .map_or("", |(name, _)| name)
    }
}

/// The definition of one architecture.
#[derive(Clone, Debug)]
pub struct ArchDef {
    /// Value of `general.architecture` in the files it describes. If it describes several architectures, the requested
    /// one.
    pub name: String,
    /// All architectures that it describes; the first one is the stem of the definition's file.
    pub names: Vec<String>,
    /// The comment at the head of the file: the special properties of the family.
    pub notes: String,
    /// The mode of execution.
    pub mode: Mode,
    /// Parameters by name: the common ones and those of the definition.
    pub params: BTreeMap<String, Param>,
    /// The declared resources, and those without a declaration that are used.
    pub resources: Resources,
    /// Resources that need no declaration. A name that follows from parameters may be any of them.
    pub defaults: Arc<Resources>,
    /// The token embedding: token ids to the hidden state. Of a tower: its input rows.
    pub embed: ContractUse,
    /// The mix that makes several hidden states of the embedded tokens; none: there is one hidden state.
    pub write: Option<Setting>,
    /// A further input for each layer.
    pub per_layer: Option<ContractUse>,
    /// What it reads of the model whose next tokens it drafts; none: it is no drafter, or one that reads tokens alone.
    pub target: Option<TargetUse>,
    /// The definition of the drafter whose weights may be in the same file.
    pub drafter: Option<Spanned<String>>,
    /// The stacks of layers, in order.
    pub stacks: Vec<Stack>,
    /// The end of the model: hidden state to logits.
    pub head: Option<Head>,
    /// Pooling: the hidden states of a sequence to one vector.
    pub pool: ContractUse,
    /// Conditions on a file's numbers, evaluated for every layer; if one is false, the definition is wrong for the
    /// file.
    pub require: Vec<Spanned<Expr>>,
    /// The tensors and keys that a file may have without being used.
    pub ignore: IgnoreRules,
    /// The settings for drawings, by names: `KEY=VALUE` sets a parameter, another word is an optional tensor without
    /// its `.weight`. `default` is the first one.
    pub variants: BTreeMap<String, String>,
    /// The text of the definition, for messages.
    pub text: Arc<DefinitionText>,
}

/// What a drafter reads of its target, the model whose next tokens it drafts: for each token a row of values of the target, those of the
/// token before it.
#[derive(Clone, Debug)]
pub struct TargetUse {
    /// The values, one after the other: the hidden state of the target after so many layers.
    pub after: Vec<Spanned<Expr>>,
    /// Whether the final norm of the target is applied to them.
    pub normed: Option<Setting>,
    /// Elements of a hidden state of the target; none: as many as one of the drafter has.
    pub width: Option<Setting>,
    /// Tokens of a block, of which one pass computes all: the last token of the sequence, then masks. The keys of earlier tokens are made of
    /// the target's rows. None: the drafter goes on token by token.
    pub block: Option<Setting>,
    /// The token that stands for those of a block that are to be drafted.
    pub mask: Option<Setting>,
    /// Whether the row of the last token of the sequence drafts too.
    pub from_first: Option<Setting>,
    /// Number of heads with weights of their own, of which each drafts one token. None: one.
    pub heads: Option<Setting>,
    /// Name of the tensor with the token of the target for each token that the drafter has a logit for, if the file has it.
    pub tokens: Option<Spanned<String>>,
    /// Whether that tensor has the distances of these tokens from their own numbers.
    pub distances: Option<Setting>,
    /// The place in the text, for messages.
    pub span: Span,
}

impl ArchDef {
    /// Whether sequences have a source.
    pub fn reads_source(&self) -> bool {
        self.stacks.iter().any(|stack| stack.reads.is_source())
    }

    /// Whether the source of a sequence is rows in the place of tokens.
    pub fn reads_rows(&self) -> bool {
        self.stacks.iter().any(|stack| stack.reads == Reads::Rows)
    }

    /// A resource by its name: a declared resource, or one that needs no declaration.
    pub fn resource(&self, kind: Resource, name: &str) -> Option<&ContractUse> {
        let key = (kind, name.to_owned());
        self.resources.get(&key).or_else(|| self.defaults.get(&key))
    }

    /// The names of the resources of a kind, declared ones first.
    pub fn resource_names(&self, kind: Resource) -> impl Iterator<Item = &str> {
        names_of(kind, &self.resources, &self.defaults)
    }
}

#[derive(Debug, Default)]
pub struct DefinitionText {
    /// The name of the text in messages.
    pub path: String,
    /// The TOML.
    pub source: String,
}

/// Tensors and keys that a file may have without being used; they cause no warning. In names and keys, `*` stands for
/// any characters.
#[derive(Clone, Debug, Default)]
pub struct IgnoreRules {
    /// Names of tensors.
    pub tensors: Vec<String>,
    /// Metadata keys relative to `<arch>.`.
    pub keys: BTreeMap<String, IgnoredKey>,
}

#[derive(Clone, Debug)]
pub struct IgnoredKey {
    /// The reason why it is ignored.
    pub reason: String,
    /// Whether all definitions ignore it.
    pub is_common: bool,
}

/// Resources by kind and name.
pub type Resources = BTreeMap<(Resource, String), ContractUse>;

/// The names of the resources of a kind, declared ones first.
pub(super) fn names_of<'a>(
    kind: Resource,
    declared: &'a Resources,
    defaults: &'a Resources,
) -> impl Iterator<Item = &'a str> {
    let others = defaults.keys().filter(|key| !declared.contains_key(key));
    let all = declared.keys().chain(others);
    let all = all.filter(move |(known, _)| *known == kind);
    all.map(|(_, name)| name.as_str())
}

/// The part that all definitions have in common.
#[derive(Clone, Debug, Default)]
pub struct CommonDefinitions {
    /// Parameters by name.
    pub params: BTreeMap<String, Param>,
    /// Resources that need no declaration: those of the common part, and the kinds that need nothing but their name.
    pub resources: Arc<Resources>,
    /// The tensors and keys that all definitions ignore.
    pub ignore: IgnoreRules,
    /// The slots that a stack of a drafter takes from its target.
    pub slots_of_target: Option<Vec<Slot>>,
}

impl CommonDefinitions {
    /// What the definition of a drafter may use of the definition of its target: parameters, resources and the slots of the last stack.
    pub fn of_target(target: &ArchDef) -> Self {
        let mut params = target.params.clone();
        params.values_mut().for_each(|param| param.span = None);
        let mut resources = Resources::clone(&target.defaults);
        resources.extend(target.resources.clone());
        Self {
            params,
            resources: Arc::new(resources),
            ignore: IgnoreRules::default(),
            slots_of_target: target.stacks.last().map(|stack| stack.slots.clone()),
        }
    }
}

/// A number or a name that the definition computes with.
#[derive(Clone, Debug)]
pub struct Param {
    /// The source of its value.
    pub source: ParamSource,
    /// The place of its declaration; `None` for common parameters.
    pub span: Option<Span>,
    /// The reason of an assumption: a value that follows from the model's size because files do not state it.
    pub assumption: Option<String>,
}

impl Param {
    /// The expression that gives the value if no key does.
    pub fn value_expr(&self) -> Option<&Expr> {
        match &self.source {
            ParamSource::Derived(expr) => Some(expr),
            ParamSource::Key { default, .. } => default.as_ref(),
        }
    }
}

/// The source of a parameter's value.
#[derive(Clone, Debug)]
pub enum ParamSource {
    /// An expression over other parameters.
    Derived(Expr),
    /// The metadata of the model file.
    Key {
        /// Metadata keys; the first one that is set is used. They are relative to `<arch>.` unless absolute.
        keys: Vec<String>,
        /// Whether the keys are full names.
        absolute: bool,
        /// Value if no key is set; without a default a missing key is an error.
        default: Option<Expr>,
        /// Whether a zero is a value, not unset.
        zero_is_value: bool,
        /// Value in a random model.
        synth: Option<Expr>,
    },
}

/// A use of a contract: a block, a stage or a resource with its settings.
#[derive(Clone, Debug)]
pub struct ContractUse {
    /// The contract that is used.
    pub contract: &'static Contract,
    /// The options in the order of the contract, with the contract's defaults.
    pub options: Vec<Setting>,
    /// The weights in the order of the contract.
    pub weights: Vec<WeightUse>,
    /// The contract's rules, parsed.
    pub rules: Vec<Expr>,
    /// Number of elements of the rows of the second input, parsed.
    pub side: Option<Expr>,
    /// Number of elements of the rows of the result where it differs from that of the input, parsed.
    pub result: Option<Expr>,
    /// Sizes of the state's rows, parsed, in the order of the state's fields.
    pub state: Vec<Expr>,
    /// The place in the text, for messages.
    pub span: Span,
}

/// The expression of one option.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The expression that gives the value.
    pub expr: Expr,
    /// Where the definition sets the option; `None` for a contract's default, which may refer to other options.
    pub span: Option<Span>,
}

/// One weight of an instance.
#[derive(Clone, Debug)]
pub struct WeightUse {
    /// Name of the tensor, relative to the layer's prefix, or after [`OF_FILE`] to the file; alternatives with [`OR`] between them.
    pub tensor: String,
    /// The condition under which the instance has the weight.
    pub when: Expr,
    /// Dimensions.
    pub shape: Vec<Expr>,
    /// Whether the weight must exist, may exist, or is not used.
    pub presence: Presence,
}

/// A sequence of layers.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Name in value paths.
    pub name: String,
    /// The place of the name, or of the stack if it has no name.
    pub name_span: Span,
    /// Prefix of its tensors; `{il}` stands for the layer of the file.
    pub prefix: String,
    /// The place of the prefix, or of the stack if it has no prefix.
    pub prefix_span: Span,
    /// Number of layers.
    pub count: Expr,
    /// The layer of the file, an expression over `depth`; none: `depth`.
    pub il: Option<Setting>,
    /// The tokens whose hidden states the stack computes.
    pub reads: Reads,
    /// The slots of each layer, in order.
    pub slots: Vec<Slot>,
    /// Whether the slots are those of the last stack of the target.
    pub has_slots_of_target: bool,
}

/// What a stack reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The tokens of the sequence, which completions extend.
    Tokens,
    /// The tokens of the source of the sequence, which are all known before the sequence's first token.
    Source,
    /// The source of the sequence as rows in the place of tokens, such as the result of a tower.
    Rows,
    /// The values of the target, in a drafter: their result is the tap `target`.
    Target,
}

impl Reads {
    /// Names in the TOML.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("tokens", Self::Tokens),
        ("source", Self::Source),
        ("rows", Self::Rows),
        ("target", Self::Target),
    ];

    /// Whether it is the source of a sequence.
    pub fn is_source(self) -> bool {
        matches!(self, Self::Source | Self::Rows)
    }

    /// The name in the TOML.
    pub fn name(self) -> &'static str {
        let names = Self::NAMES.iter().find(|(_, reads)| *reads == self);
        names.map_or("tokens", |(name, _)| *name)
    }
}

/// One sublayer: see the formula of the module.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name in value paths.
    pub name: String,
    /// The place in the text.
    pub span: Span,
    /// The layers that have it, as a condition; none: all layers.
    pub when: Option<Expr>,
    /// The mix that reads one hidden state of several; none: there is only one, or an earlier slot read it.
    pub read: Option<Setting>,
    /// The tap that the slot reads in place of the hidden state.
    pub from: Option<Spanned<String>>,
    /// Norm of the input, as a name.
    pub pre: Option<Setting>,
    /// The branches; those whose `when` holds are summed.
    pub branches: Vec<Branch>,
    /// Norm of the sum.
    pub post: Option<Setting>,
    /// Factor of the sum.
    pub scale: Option<Setting>,
    /// How the sum joins the hidden state.
    pub join: Join,
    /// Norm of the joined hidden state.
    pub after: Option<Setting>,
    /// The mix that writes the several hidden states.
    pub write: Option<Setting>,
}

/// The end of the model: a norm, then the projection to logits.
#[derive(Clone, Debug)]
pub struct Head {
    /// The mix that reads one hidden state of several.
    pub read: Option<Setting>,
    /// Final norm, as a name.
    pub norm: Option<Setting>,
    /// Projection to logits.
    pub unit: ContractUse,
}

/// How a slot's result joins the hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The result is added to the hidden state.
    Add,
    /// The result replaces the hidden state.
    Set,
    /// Each row of the result follows its row of the hidden state.
    Append,
    /// The hidden state stays: the result is only saved.
    Keep,
}

impl Join {
    /// Names in the TOML.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("add", Self::Add),
        ("set", Self::Set),
        ("append", Self::Append),
        ("keep", Self::Keep),
    ];

    /// Name in the TOML.
    pub fn name(self) -> &'static str {
        let mut names = Self::NAMES.iter();
        names
            .find(|(_, join)| *join == self)
            .map_or("", |(name, _)| name)
    }

    /// What becomes of the result, in words.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Add => "added to the hidden state",
            Self::Set => "replaces the hidden state",
            Self::Append => "appended to the hidden state",
            Self::Keep => "only saved",
        }
    }
}

/// The tokens that a branch is for. Its result is zero at the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchTokens {
    /// All tokens.
    All,
    /// The tokens of texts.
    Text,
    /// The tokens of media, and those before and after one, which mark its begin and end. A pass without media leaves the
    /// branch out.
    Media,
}

impl BranchTokens {
    /// Names in the TOML.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("all", Self::All),
        ("text", Self::Text),
        ("media", Self::Media),
    ];
}

/// One branch of a slot.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Name in value paths.
    pub name: String,
    /// The layers that have it, as a condition; none: all layers.
    pub when: Option<Expr>,
    /// The tokens that it is for.
    pub tokens: BranchTokens,
    /// The tap that the branch reads in place of the slot's normed input.
    pub from: Option<Spanned<String>>,
    /// Tap that the block reads in addition to its input.
    pub side: Option<Spanned<String>>,
    /// Norm before the block.
    pub pre: Option<Setting>,
    /// Norm after the block.
    pub post: Option<Setting>,
    /// Factor of the result.
    pub factor: Option<Setting>,
    /// Tap that holds the result.
    pub save: Option<Spanned<String>>,
    /// Whether each row of the result follows its row of what the tap holds already.
    pub appends: bool,
    pub block: ContractUse,
}

/// First character of the name of a tensor of the file; other names are relative to the layer.
pub const OF_FILE: char = '/';

/// Between alternatives in the name of a tensor: the first that the file has is used, or the last one.
pub const OR: char = '|';

/// A name of a tensor before, in and after the braces of a parameter, whose value stands there; none without one.
pub fn braced_param(name: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = name.split_once('{')?;
    let (param, after) = rest.split_once('}')?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!param.is_empty() && param.chars().all(fits)).then_some((before, param, after))
}

/// The names for the layer: `il` is the layer of the file, whose tensors and metadata are used, `depth` the place in
/// the stack. They are equal unless a stack sets `il`.
pub(super) const LAYER: [&str; 2] = ["il", "depth"];

/// The names whose values contracts get from the place of use: the width of a norm, the place of a mix and the number
/// of hidden states there.
pub(super) const GIVEN: [&str; 3] = ["width", "place", "states"];

/// The parameter of text diffusion: whether the logits at a position predict the next token.
pub const SHIFT_LOGITS: &str = "shift_logits";

/// The parameter of models that read a source: the token with which every completion starts.
pub const START_TOKEN: &str = "start_token";

/// Taps that exist without `save`.
pub const TAPS: [&str; 6] = ["x", "h", "layer_in", "embd", "ple", TARGET];

/// The tap that a drafter has: the row of the target, or what its own stacks make of it; in later passes of a draft its own [`NEXT`].
pub const TARGET: &str = "target";

/// The tap that stands for the row of the target when a drafter goes on alone; if no branch saves it, the last hidden state.
pub const NEXT: &str = "next";

/// Whether a name fits a pattern in which `*` stands for any characters.
pub fn fits_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
