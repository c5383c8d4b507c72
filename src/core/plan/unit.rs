//! One use of a contract: its options, rules, weights and state.

use std::fmt::Display;

use super::facts::{LayerScope, UnitScope, WholeLists};
use super::planner::{Planned, Planner, Reported, index_of};
use super::{
    CachePlan, ContractRef, KeyTokens, KeyValuePlan, Plan, PooledPlan, SHOWN, StatePart, StatePlan,
    TensorPlan, Unit,
};
use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{
    ContractUse, OF_FILE, OptionKind, Presence, ResolvedOption, Resource, Setting, StateSpec,
    WeightRole, nearest,
};
use lab_base::weights::TensorType;

impl Planner<'_> {
    /// Plans a use of a contract: options, weights, rules and state.
    pub(super) fn unit(
        &mut self,
        path: &str,
        instance: &ContractUse,
        layer: &LayerScope<'_>,
        given: &[(&'static str, u64)],
    ) -> Planned<Unit> {
        let contract = instance.contract;
        let mut options: Vec<ResolvedOption> = Vec::with_capacity(contract.options.len());
        for (spec, setting) in contract.options.iter().zip(&instance.options) {
            let what = format_args!("{path}: {}", spec.name);
            let value = if spec.kind == OptionKind::List {
                self.evaluate(&setting.expr, &WholeLists(layer), &what)?
            } else if setting.span.is_some() {
                self.evaluate(&setting.expr, layer, &what)?
            } else {
                let scope = UnitScope {
                    layer,
                    instance,
                    options: &options,
                    given,
                };
                self.evaluate(&setting.expr, &scope, &what)?
            };
            let resolved = self.resolve(spec.kind, value, &what, layer)?;
            options.push(resolved);
        }
        let scope = UnitScope {
            layer,
            instance,
            options: &options,
            given,
        };
        for (rule, spec) in instance.rules.iter().zip(contract.rules) {
            if self.evaluate(rule, &scope, &path)? != Value::Bool(true) {
                self.report(format!(
                    "{path}: {} ({} is not true)",
                    spec.message, spec.holds
                ));
            }
        }
        let weights = self.weights(path, instance, &scope);
        let state = match contract.state {
            StateSpec::None => None,
            StateSpec::KeyValue {
                cache,
                layer,
                pooled,
                ..
            } => Some(StatePlan::KeyValue(self.key_values(
                path,
                &scope,
                (cache, pooled.map(|pooled| pooled.cache)),
                layer,
            )?)),
            StateSpec::Recurrent(parts) => {
                let parts = parts.iter().zip(&instance.state);
                let parts: Planned<Vec<StatePart>> = parts
                    .map(|((name, _), expr)| {
                        let size = self.size(expr, &scope, &path)?;
                        Ok(StatePart { name, size })
                    })
                    .collect();
                Some(StatePlan::Recurrent(parts?))
            }
        };
        let mut weights = weights?;
        let updates = self.updates(path, instance, &scope, &mut weights)?;
        Ok(Unit {
            path: path.to_owned(),
            contract: ContractRef(contract),
            options,
            weights,
            updates,
            state,
            device: 0,
        })
    }

    fn key_values(
        &mut self,
        path: &str,
        scope: &UnitScope<'_>,
        (cache, pooled): (&str, Option<&str>),
        layer: Option<&str>,
    ) -> Planned<KeyValuePlan> {
        let specs = scope.instance.contract.options;
        let option = |name: &str| {
            let at = specs.iter().position(|o| o.name == name)?;
            scope.options.get(at)
        };
        let [k, v, heads, v_in_k, index, of_pooled @ ..] = scope.instance.state.as_slice() else {
            return Err(Reported);
        };
        let depth = scope.layer.index.map(|index| index.depth);
        let owner = match layer.and_then(option) {
            Some(ResolvedOption::Int(owner)) if Some(*owner) != depth => {
                Some(self.owner(path, *owner, scope.layer)?)
            }
            _ => None,
        };
        let Some(ResolvedOption::Resource(Some(cache))) = option(cache) else {
            return Err(Reported);
        };
        let span = self.caches[*cache].span();
        let pooled = match (pooled.and_then(option), of_pooled) {
            (Some(ResolvedOption::Resource(Some(from))), [width, span, reach]) => {
                Some(PooledPlan {
                    cache: *from,
                    width: self.size(width, scope, &path)?,
                    span: self.size(span, scope, &path)?,
                    reach: self.size(reach, scope, &path)?,
                })
            }
            _ => None,
        };
        if pooled.as_ref().map(|pooled| pooled.span) != span {
            let found = pooled.map_or(0, |pooled| pooled.span);
            return self.problem(format!(
                "{path}: computes keys over spans of {found} positions, but its cache stores spans of {}",
                span.unwrap_or(0)
            ));
        }
        if let Some(PooledPlan { cache, reach, .. }) = &pooled
            && (self.caches[*cache]
                .window()
                .is_some_and(|size| size < *reach)
                || self.caches[*cache].span().is_some())
        {
            return self.problem(format!(
                "{path}: the keys of spans are made of {reach} positions, which `{}` does not keep",
                self.caches[*cache].name
            ));
        }
        Ok(KeyValuePlan {
            cache: *cache,
            k: self.size(k, scope, &path)?,
            v: self.size(v, scope, &path)?,
            heads: self.size(heads, scope, &path)?,
            v_in_k: self.evaluate(v_in_k, scope, &path)? == Value::Bool(true),
            owner,
            index: match self.evaluate(index, scope, &path)? {
                Value::Int(0) => 0,
                _ => self.size(index, scope, &path)?,
            },
            pooled,
        })
    }

    /// A factor; an expression with value 1 counts as no factor.
    pub(super) fn factor(
        &mut self,
        setting: Option<&Setting>,
        path: &str,
        scope: &LayerScope<'_>,
    ) -> Planned<Option<f64>> {
        let Some(setting) = setting else {
            return Ok(None);
        };
        match self.evaluate(&setting.expr, scope, &path)? {
            Value::Int(1) => Ok(None),
            Value::Int(v) => Ok(Some(v as f64)),
            Value::Float(v) if v.is_finite() => Ok((v != 1.0).then_some(v)),
            other => self.problem(format!("{path}: expected a finite factor, found `{other}`")),
        }
    }

    /// The path of the same unit in the earlier layer at the depth `layer`.
    fn owner(&mut self, path: &str, layer: u64, scope: &LayerScope<'_>) -> Planned<String> {
        let depth = scope.index.ok_or(Reported)?.depth;
        let own = format!(".{depth}.");
        if layer > depth || !path.contains(&own) {
            return self.problem(format!(
                "{path}: reads the keys of layer {layer}, which does not come before it"
            ));
        }
        Ok(path.replacen(&own, &format!(".{layer}."), 1))
    }

    pub(super) fn size(
        &mut self,
        expr: &Expr,
        scope: &dyn Scope,
        what: &dyn Display,
    ) -> Planned<u64> {
        match self.evaluate(expr, scope, what)? {
            Value::Int(n) if n > 0 => Ok(n as u64),
            other => self.problem(format!(
                "{what}: {expr} is {other}, expected a positive integer"
            )),
        }
    }

    fn resolve(
        &mut self,
        kind: OptionKind,
        value: Value,
        what: &dyn Display,
        layer: &LayerScope<'_>,
    ) -> Planned<ResolvedOption> {
        match (kind, value) {
            (OptionKind::Int, Value::Int(v)) if v >= 0 => Ok(ResolvedOption::Int(v as u64)),
            (OptionKind::Float, Value::Int(v)) => Ok(ResolvedOption::Float(v as f64)),
            (OptionKind::Float, Value::Float(v)) if v.is_finite() => Ok(ResolvedOption::Float(v)),
            (OptionKind::List, Value::List(all)) => {
                let whole = |v: &Value| match v {
                    Value::Int(v) => u64::try_from(*v).ok(),
                    _ => None,
                };
                match all.iter().map(whole).collect() {
                    Some(all) => Ok(ResolvedOption::List(all)),
                    None => self.problem(format!("{what}: expected integers from 0")),
                }
            }
            (OptionKind::List, Value::Int(v)) if v >= 0 => Ok(ResolvedOption::List(vec![v as u64])),
            (OptionKind::Bool, Value::Bool(v)) => Ok(ResolvedOption::Bool(v)),
            (OptionKind::Choice(names), Value::Str(v)) => {
                match names.iter().find(|name| **name == v) {
                    Some(name) => Ok(ResolvedOption::Choice(name)),
                    None => self.problem(format!(
                        "{what}: `{v}` is unknown, expected one of {}",
                        names.join(", ")
                    )),
                }
            }
            (OptionKind::Resource(_), Value::Str(v)) if v == "none" || v.is_empty() => {
                Ok(ResolvedOption::Resource(None))
            }
            (OptionKind::Resource(kind), Value::Str(v)) => self.resource(kind, &v, what, layer),
            (kind, value) => {
                let expected = match kind {
                    OptionKind::Int => "an integer from 0",
                    OptionKind::Float => "a finite number",
                    OptionKind::List => "a list of integers",
                    OptionKind::Bool => "true or false",
                    _ => "a name",
                };
                self.problem(format!("{what}: expected {expected}, found `{value}`"))
            }
        }
    }

    fn resource(
        &mut self,
        kind: Resource,
        name: &str,
        what: &dyn Display,
        layer: &LayerScope<'_>,
    ) -> Planned<ResolvedOption> {
        let def = self.facts.def;
        let Some(instance) = def.resource(kind, name) else {
            let known: Vec<&str> = def.resource_names(kind).collect();
            return self.problem(format!(
                "{what}: `{name}` is unknown, expected one of {}",
                known.join(", ")
            ));
        };
        let path = format!("{}.{name}", kind.name());
        let mut instance = instance.clone();
        for weight in &mut instance.weights {
            // One table of factors is used by every layer.
            weight.tensor.insert(0, OF_FILE);
        }
        if kind == Resource::Norm {
            // A norm that an option names provides its kind and eps; the block has the weight.
            instance.weights.clear();
        }
        let mut unit = self.unit(&path, &instance, layer, &[])?;
        let index = match kind {
            Resource::Act => index_of(&mut self.acts, unit),
            Resource::Rope => index_of(&mut self.ropes, unit),
            Resource::Selection => index_of(&mut self.selections, unit),
            Resource::Norm => {
                unit.path.clear();
                index_of(&mut self.norms, unit)
            }
            // No option names a mix.
            Resource::Mix => return Err(Reported),
            Resource::Cache => index_of(
                &mut self.caches,
                CachePlan {
                    name: name.to_owned(),
                    unit,
                    keys: KeyTokens::Tokens,
                },
            ),
        };
        Ok(ResolvedOption::Resource(Some(index)))
    }

    fn weights(
        &mut self,
        path: &str,
        instance: &ContractUse,
        scope: &UnitScope<'_>,
    ) -> Planned<Vec<Option<usize>>> {
        let mut out = Vec::with_capacity(instance.weights.len());
        let mut sound = true;
        for (spec, weight) in instance.contract.weights.iter().zip(&instance.weights) {
            let belongs = self.evaluate(&weight.when, scope, &path)? == Value::Bool(true);
            if !belongs || !scope.has(spec.key).unwrap_or(false) {
                if belongs && weight.presence == Presence::Required {
                    sound = false;
                    let name = scope.layer.tensor(&weight.tensor);
                    let hint = self.hint(&name);
                    self.report(format!(
                        "{path}: missing tensor `{name}` ({}){hint}",
                        spec.doc
                    ));
                }
                out.push(None);
                continue;
            }
            let name = scope.layer.tensor(&weight.tensor);
            let shape: Planned<Vec<u64>> = weight
                .shape
                .iter()
                .map(|dim| self.size(dim, scope, &format_args!("{path}: {name}")))
                .collect();
            // Trailing dimensions of 1 are not written to files.
            let shape = shape.map(|mut shape| {
                while shape.len() > 1 && shape.last() == Some(&1) {
                    shape.pop();
                }
                shape
            });
            let index =
                shape.and_then(|shape| self.tensor(path, name, shape, &weight.shape, spec.role));
            if let (Ok(at), Some(below)) = (index, scope.ids_below(spec.role)) {
                let other = self.tensors[at].below.unwrap_or(below);
                self.tensors[at].below = Some(below.min(other));
            }
            sound &= index.is_ok();
            out.push(index.ok());
        }
        sound.then_some(out).ok_or(Reported)
    }

    /// Advice on a missing tensor. It is given only with problems that are shown, since it compares all names.
    pub(super) fn hint(&self, name: &str) -> String {
        if self.problems.len() >= SHOWN {
            return String::new();
        }
        let tensors = self.facts.tensors;
        if let Some(origin) = tensors.origin(name) {
            return format!("; {origin}");
        }
        let near = nearest(name, tensors.names()).filter(|_| tensors.is_file());
        near.map(|near| format!("; the file has `{near}`"))
            .unwrap_or_default()
    }

    pub(super) fn tensor(
        &mut self,
        path: &str,
        name: String,
        shape: Vec<u64>,
        dims: &[Expr],
        role: WeightRole,
    ) -> Planned<usize> {
        if let Some(&at) = self.tensor_index.get(&name) {
            if self.tensors[at].shape == shape {
                return Ok(at);
            }
            let other = show(&self.tensors[at].shape);
            return self.problem(format!(
                "{path}: `{name}` is used as {} and as {other}",
                show(&shape)
            ));
        }
        let (ty, bytes) = match self.facts.tensors.stored(&name) {
            Some((ty, stored, bytes)) => {
                let origin = self.facts.tensors.origin(&name);
                let origin = origin.map(|of| format!("; {of}")).unwrap_or_default();
                if !same_shape(&shape, stored) {
                    let symbols: Vec<_> = dims.iter().map(Expr::source).collect();
                    let symbols = match symbols.is_empty() {
                        true => String::new(),
                        false => format!(" = [{}]", symbols.join(", ")),
                    };
                    return self.problem(format!(
                        "{path}: tensor `{name}` has the shape {}, expected {}{symbols}{origin}",
                        show(stored),
                        show(&shape),
                    ));
                }
                let is_fine = match role {
                    WeightRole::Ids(_) => ty == TensorType::I32,
                    _ => has_weights(ty),
                };
                if !is_fine {
                    return self.problem(format!(
                        "{path}: tensor `{name}` is {ty}, which no {} is{origin}",
                        if matches!(role, WeightRole::Ids(_)) {
                            "list of ids"
                        } else {
                            "weight"
                        },
                    ));
                }
                (Some(ty), bytes)
            }
            None => match TensorType::F32.tensor_bytes(&shape) {
                Some(bytes) => (None, bytes),
                None => {
                    return self.problem(format!("{path}: `{name}` {} is too large", show(&shape)));
                }
            },
        };
        self.tensor_index.insert(name.clone(), self.tensors.len());
        self.tensors.push(TensorPlan {
            name,
            shape,
            ty,
            bytes,
            role,
            below: None,
            device: 0,
        });
        Ok(self.tensors.len() - 1)
    }
}

impl KeyValuePlan {
    /// Number of elements that are stored of a position.
    pub fn width(&self) -> u64 {
        let values = if self.v_in_k { 0 } else { self.v };
        self.k.saturating_add(values).saturating_add(self.index)
    }
}

impl Plan {
    /// The resource that the value of an option of this kind names.
    pub fn resource(&self, kind: OptionKind, value: &ResolvedOption) -> Option<&Unit> {
        let (OptionKind::Resource(kind), ResolvedOption::Resource(Some(at))) = (kind, value) else {
            return None;
        };
        Some(match kind {
            Resource::Norm => &self.norms[*at],
            Resource::Act => &self.acts[*at],
            Resource::Rope => &self.ropes[*at],
            Resource::Cache => &self.caches[*at].unit,
            Resource::Selection => &self.selections[*at],
            Resource::Mix => return None,
        })
    }

    /// The units that store their own keys and values between passes, in the order of execution.
    pub fn key_values(&self) -> impl Iterator<Item = (&Unit, &KeyValuePlan)> {
        let is_kept = |rows: &&KeyValuePlan| {
            rows.owner.is_none() && self.caches[rows.cache].keys != KeyTokens::Pass
        };
        let units = self.units();
        units.filter_map(move |unit| Some((unit, unit.key_values().filter(is_kept)?)))
    }

    /// The units with a recurrent state, in the order of execution.
    pub fn recurrent(&self) -> impl Iterator<Item = (&Unit, &[StatePart])> {
        self.units().filter_map(|unit| match unit.state.as_ref()? {
            StatePlan::Recurrent(parts) => Some((unit, parts.as_slice())),
            StatePlan::KeyValue(_) => None,
        })
    }

    /// The selection of keys that a unit uses.
    pub fn selection(&self, unit: &Unit) -> Option<&Unit> {
        unit.selection().map(|at| &self.selections[at])
    }
}

/// Whether shapes are equal up to trailing dimensions of 1, which file formats drop.
fn same_shape(a: &[u64], b: &[u64]) -> bool {
    let n = a.len().max(b.len());
    (0..n).all(|i| a.get(i).unwrap_or(&1) == b.get(i).unwrap_or(&1))
}

/// Whether numbers of a type can be weights: no operation computes with integers or f64.
fn has_weights(ty: TensorType) -> bool {
    use TensorType as T;
    !matches!(ty, T::I8 | T::I16 | T::I32 | T::I64 | T::F64)
}

fn show(shape: &[u64]) -> String {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}
