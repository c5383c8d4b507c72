//! An expression of a definition, with a value for every name.
#![no_main]

use lab_core::arch::expr::{Expr, Scope, Value};

struct Anything;

impl Scope for Anything {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        Ok(match name.len() % 5 {
            0 => Value::Int(-3),
            1 => Value::Float(0.5),
            2 => Value::Bool(true),
            3 => Value::Str(name.into()),
            _ if whole => Value::List(vec![
                Value::Int(i64::MAX),
                Value::Float(-0.0),
                Value::Int(0),
            ]),
            _ => Value::Int(i64::MIN),
        })
    }

    fn has(&self, weight: &str) -> Result<bool, String> {
        Ok(weight.len() % 2 == 0)
    }

    fn dim(&self, _: &str, index: i64) -> Result<i64, String> {
        Ok(index)
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        Ok(key.len() as i64)
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(expr) = Expr::parse(text, 0) else {
        return;
    };
    let _ = expr.evaluate(&Anything);
    let _ = expr.static_type();
    let _ = expr.bind(&Anything, &["x"], &|_| None);
    let _ = expr.linear("x", &Anything);
    let _ = expr.symbolic(&Anything, &|_| None);
});
