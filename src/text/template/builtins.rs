//! The engine's own filters, tests and functions behind the budget.
//!
//! Those that Jinja2 knows are charged for what they read before they run and for what they gave
//! after; those that it does not know are removed, so that nothing unbounded is left by accident.

use minijinja::value::{FunctionArgs, FunctionResult, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions, tests};

use super::arguments::{bind, optional_int, optional_text};
use super::budget::{self, ITEM, Walk};
use super::methods::charge_printf;
use super::operators::owned;
use super::value::{fault, str};

/// Filters and functions of the engine that no Jinja2 template can mean.
const FOREIGN_FILTERS: [&str; 4] = ["chain", "zip", "lines", "split"];

/// Puts the engine's own filters, tests and functions behind the budget.
pub(super) fn register(env: &mut Environment<'static>) {
    for name in FOREIGN_FILTERS {
        env.remove_filter(name);
    }
    env.remove_global("debug");

    macro_rules! charged {
        ($charge:expr; $($name:ident)*) => {
            $(env.add_filter(stringify!($name), charged(filters::$name, $charge));)*
        };
    }
    charged!(read_all; list reverse);
    macro_rules! of_items {
        ($($name:ident)*) => {
            $(env.add_filter(stringify!($name), of_items(filters::$name));)*
        };
    }
    of_items!(map select selectattr reject rejectattr);
    charged!(format; format);
    env.add_filter("abs", |value: Value| filters::abs(as_number(value)));
    env.add_filter("round", round);

    macro_rules! compared {
        ($($test:ident: $($name:literal)*),*) => {
            $($(env.add_test($name, charged_test(tests::$test));)*)*
        };
    }
    compared!(
        is_eq: "eq" "equalto" "==",
        is_ne: "ne" "!=",
        is_in: "in"
    );
    env.add_function("namespace", charged(functions::namespace, walk_all));
}

type Charge = fn(&[Value]) -> Result<(), Error>;

/// `inner`, after `charge` has seen its arguments; a view that it gives becomes a list.
fn charged<F, Rv, Args>(
    inner: F,
    charge: Charge,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static
where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = Value::from_function(inner);
    move |state, args| {
        let args = args.into_values();
        charge(&args)?;
        let result = inner.call(state, &args)?;
        budget::made(budget::size(&result))?;
        owned(result)
    }
}

fn charged_test<F, Rv, Args>(
    inner: F,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<bool, Error> + Send + Sync + 'static
where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = charged(inner, walk_all);
    move |state, args| Ok(inner(state, args)?.is_true())
}

fn read_all(args: &[Value]) -> Result<(), Error> {
    args.iter()
        .try_for_each(|arg| budget::read(ITEM + budget::size(arg)))
}

fn walk_all(args: &[Value]) -> Result<(), Error> {
    args.iter()
        .try_for_each(|arg| budget::walk(arg, Walk::Read))
}

/// For filters that go through the items of a value, which Jinja2 does not look at where the value is
/// false.
fn of_items<F, Rv, Args>(
    inner: F,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static
where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let inner = charged(inner, |args| {
        let value = args.first().cloned().unwrap_or_default();
        budget::walk(&value, Walk::Read)?;
        budget::made(match value.kind() {
            ValueKind::String => budget::size(&value).saturating_mul(ITEM),
            _ => budget::size(&value),
        })
    });
    move |state, args| match args.iter().next() {
        Some(value) if !value.is_kwargs() && !value.is_true() => {
            Ok(Value::from(Vec::<Value>::new()))
        }
        _ => inner(state, args),
    }
}

/// A boolean as the number that it is in Python.
fn as_number(value: Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value,
    }
}

/// `value | round(precision=0, method='common')`; the other methods give a float.
fn round(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [precision, method] = bind(&args.into_values(), ["precision", "method"])?;
    let precision = optional_int(&precision, "precision")?.unwrap_or(0);
    let precision = i32::try_from(precision).map_err(|_| fault("round: too many digits"))?;
    let method = optional_text(&method, "method")?.unwrap_or("common");
    let value = match (as_number(value), method) {
        (value, "common") => value,
        (value, _) => Value::from(f64::try_from(value)?),
    };
    filters::round(
        value,
        Some(precision),
        Some(method),
        std::iter::empty::<(&str, Value)>().collect(),
    )
}

fn format(args: &[Value]) -> Result<(), Error> {
    match args.split_first() {
        Some((pattern, args)) => charge_printf(&str(pattern)?, args),
        None => Ok(()),
    }
}
