//! The engine's own filters, tests and functions behind the budget.
//!
//! Those that Jinja2 knows are charged for what they read before they run and for what they gave
//! after; those that it does not know are removed, so that nothing unbounded is left by accident.

use minijinja::value::{FunctionArgs, FunctionResult, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions, tests};

use super::arguments::{bind, optional_int};
use super::budget::{self, ITEM, Walk};
use super::methods::charge_format;
use super::operators::owned;
use super::value::str;

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
    charged!(read_all; upper lower title capitalize first last attr round abs);
    charged!(walk_all; min max pprint);
    charged!(list_all; list sort map select selectattr reject rejectattr reverse unique groupby
        dictsort);
    charged!(divide; batch slice);
    charged!(indent; indent);
    charged!(format; format);

    macro_rules! compared {
        ($($test:ident: $($name:literal)*),*) => {
            $($(env.add_test($name, charged_test(tests::$test));)*)*
        };
    }
    compared!(
        is_eq: "eq" "equalto" "==",
        is_ne: "ne" "!=",
        is_lt: "lt" "lessthan" "<",
        is_le: "le" "<=",
        is_gt: "gt" "greaterthan" ">",
        is_ge: "ge" ">=",
        is_in: "in",
        is_lower: "lower",
        is_upper: "upper"
    );
    env.add_function("dict", charged(functions::dict, walk_all));
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

/// For filters that make a list of the items of the first argument, which for a text are its
/// characters.
fn list_all(args: &[Value]) -> Result<(), Error> {
    read_all(args)?;
    let Some(value) = args.first() else {
        return Ok(());
    };
    // Sorting and grouping compare whole items.
    budget::walk(value, Walk::Read)?;
    budget::made(match value.kind() {
        ValueKind::String => budget::size(value).saturating_mul(ITEM),
        _ => budget::size(value),
    })
}

/// For filters that also make as many lists, or fill up to as many items, as an argument says.
fn divide(args: &[Value]) -> Result<(), Error> {
    list_all(args)?;
    let count = args
        .get(1)
        .and_then(|count| usize::try_from(count.clone()).ok());
    budget::made(count.unwrap_or(0).saturating_mul(4 * ITEM))
}

fn indent(args: &[Value]) -> Result<(), Error> {
    let Some((value, rest)) = args.split_first() else {
        return Ok(());
    };
    let [width, ..] = bind(rest, ["width", "first", "blank"])?;
    let width = optional_int(&width, "width")?.unwrap_or(4);
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    let n_lines = str(value)?.matches('\n').count() + 1;
    budget::made(width.saturating_mul(n_lines.saturating_add(1)))
}

fn format(args: &[Value]) -> Result<(), Error> {
    match args.split_first() {
        Some((pattern, args)) => charge_format(&str(pattern)?, args),
        None => Ok(()),
    }
}
