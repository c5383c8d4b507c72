//! Checks whether the devices of a plan can store keys and values and attend to them, before any memory is taken.

use crate::plan::{Plan, Unit};
use lab_base::ggml::{Device, KeptOp};

use super::devices;
use super::error::{Error, Result};
use super::graph_shape::GraphShape;
use super::options::Options;
use super::trace;

/// The options with which the devices of a plan can run it: with block tables if all have attention over them, without
/// flash attention if only that is missing, and with whole rows of logits if the device of the head cannot select the
/// highest.
pub(super) fn usable(plan: &Plan, mut options: Options) -> Result<Options> {
    let runs = |device: Device, op: &KeptOp| op.runs_on(device);
    options.device_tables = reads_tables(plan, &options, &Device::may_read_block_tables, &runs)?;
    if !options.device_tables {
        options = usable_by(plan, options, &runs)?;
    }
    let of_top = Options {
        feeds_tokens: false,
        ..options.clone()
    };
    let whole = "rows of logits are read whole";
    options.top_logits = options.top_logits && runs_head(plan, &of_top, whole)?;
    let read = "tokens are read before the next pass";
    options.feeds_tokens = options.feeds_next(plan) && runs_head(plan, &options, read)?;
    Ok(options)
}

/// Whether all keys and values on devices can be read by block tables. `may_read` tells of a device whether it is
/// asked at all: those that know no tables ignore them.
fn reads_tables(
    plan: &Plan,
    options: &Options,
    may_read: &dyn Fn(Device) -> bool,
    runs: &dyn Fn(Device, &KeptOp) -> bool,
) -> Result<bool> {
    let devices = devices::of_plan(plan)?;
    let of_keys = plan.key_values().map(|(unit, _)| unit.device);
    let mut of_keys = of_keys.filter(|device| *device != 0).peekable();
    if of_keys.peek().is_none() || !of_keys.all(|device| may_read(devices[device])) {
        return Ok(false);
    }
    let options = Options {
        device_tables: true,
        ..options.clone()
    };
    if !options.is_paged(plan) {
        return Ok(false);
    }
    // A graph with what only the processor does over tables cannot be made.
    let lacking = match first_lacking(plan, &options, runs) {
        Ok(None) => return Ok(true),
        Ok(Some((device, op))) => format!("{} has none for {}", device.name(), op.rows),
        Err(error) => error.to_string(),
    };
    tracing::warn!("attention by block tables is not used: {lacking}");
    Ok(false)
}

/// Whether the device of the head runs the operations that select the highest logits and what follows from them. If not, the log says
/// what happens `instead`.
fn runs_head(plan: &Plan, options: &Options, instead: &str) -> Result<bool> {
    let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let Some(head) = head.filter(|_| options.n_top(plan) > 0) else {
        return Ok(true);
    };
    let missing = missing_of(plan, options, head)?;
    if let Some((device, op)) = &missing {
        tracing::info!("{device} has no {op}: {instead}");
    }
    Ok(missing.is_none())
}

/// An operation of a unit that its device does not run, with the name of the device.
pub(super) fn missing_of(
    plan: &Plan,
    options: &Options,
    unit: &Unit,
) -> Result<Option<(String, String)>> {
    let of_pass = Options {
        n_batch: 1,
        ..options.clone()
    };
    let shape = GraphShape::largest(&of_pass, plan, &options.n_slots(plan));
    let (graph, ..) = trace::described(plan, options, &shape)?;
    let device = devices::of_plan(plan)?[unit.device];
    let lacking = graph.lacking(device, unit.device);
    let missing = lacking.into_iter().find(|op| op.path == unit.path);
    Ok(missing.map(|op| (device.name(), op.op)))
}

/// [`usable`] with a function `runs` that tells whether a device runs an operation.
fn usable_by(
    plan: &Plan,
    options: Options,
    runs: &dyn Fn(Device, &KeptOp) -> bool,
) -> Result<Options> {
    if plan.devices.is_empty() {
        return Ok(options);
    }
    let Some((device, lacking)) = first_lacking(plan, &options, runs)? else {
        return Ok(options);
    };
    let is_flash = |op: &KeptOp| op.op == "FLASH_ATTN_EXT";
    if !is_flash(&lacking) {
        return Err(refusal(device, &lacking));
    }
    let plain = Options {
        flash_attn: false,
        ..options
    };
    if let Some((device, lacking)) = first_lacking(plan, &plain, runs)? {
        return Err(refusal(device, &lacking));
    }
    tracing::warn!(
        "{} has no flash attention over {}: attention is computed step by step",
        device.name(),
        lacking.rows
    );
    Ok(plain)
}

fn refusal(device: Device, op: &KeptOp) -> Error {
    Error::Lacking {
        device: device.name(),
        op: op.op.clone(),
        path: op.path.clone(),
        rows: op.rows.clone(),
    }
}

/// The first operation over keys and values that its device does not run. Flash attention is returned only if no
/// other operation is missing.
fn first_lacking(
    plan: &Plan,
    options: &Options,
    runs: &dyn Fn(Device, &KeptOp) -> bool,
) -> Result<Option<(Device, KeptOp)>> {
    let devices = devices::of_plan(plan)?;
    let n_slots = options.n_slots(plan);
    let mut found = None;
    for n_batch in [1, options.n_batch.max(1)] {
        let of_pass = Options {
            n_batch,
            ..options.clone()
        };
        let shape = GraphShape::largest(&of_pass, plan, &n_slots);
        let source = GraphShape::largest_source(&of_pass, plan);
        let mut ops = Vec::new();
        for shape in source.into_iter().chain([shape]) {
            let (graph, ..) = trace::described(plan, options, &shape)?;
            ops.extend(graph.kept_ops());
        }
        for op in ops {
            let attends = plan.key_values().map(|(unit, _)| unit);
            let scans = plan.recurrent().map(|(unit, _)| unit);
            let mut kept = attends.chain(scans.filter(|_| op.is_of_time));
            let unit = kept.find(|unit| unit.path == op.path);
            let Some(unit) = unit.filter(|unit| unit.device != 0) else {
                continue;
            };
            let device = devices[unit.device];
            if !runs(device, &op) {
                match op.op == "FLASH_ATTN_EXT" {
                    true => found = found.or(Some((device, op))),
                    false => return Ok(Some((device, op))),
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Library;
    use crate::blocks::REGISTRY;
    use crate::models::synth::{SynthRequest, synth};
    use crate::plan::DeviceShare;
    use lab_base::weights;

    /// The plan of a model with attention.
    fn plan() -> Plan {
        let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("model.gguf");
        let made = library.sources().map(|(name, _)| {
            let def = library.get(name).expect("it is built in");
            synth(&def, &SynthRequest::default(), &path).expect("it can be made");
            let weights = weights::open(&path).expect("synth writes what we read");
            Plan::new(&def, weights.metadata(), &weights).expect("it fits")
        });
        let mut made = made.filter(|plan| plan.key_values().next().is_some());
        made.next().expect("a definition with attention")
    }

    /// The same plan on a second device. It is the processor too, which changes nothing.
    fn placed() -> Plan {
        let mut plan = plan();
        plan.place(&[DeviceShare {
            device: Device::cpu().expect("the processor").name(),
            n_layers: plan.n_placeable(),
        }]);
        plan
    }

    fn options() -> Options {
        Options {
            n_seqs: 2,
            ..Options::plain(64, 8)
        }
    }

    #[test]
    fn what_a_device_lacks_is_replaced_or_refused() {
        let plan = placed();
        let usable =
            |lacks: &dyn Fn(&KeptOp) -> bool| usable_by(&plan, options(), &|_, op| !lacks(op));
        let all = usable(&|_| false).expect("nothing is missing");
        assert!(all.flash_attn);
        let plain = usable(&|op| op.op == "FLASH_ATTN_EXT").expect("step by step");
        assert!(!plain.flash_attn);
        let refused = usable(&|op| op.op == "SET_ROWS").expect_err("nothing is kept");
        let said = refused.to_string();
        for part in [
            "CPU",
            "SET_ROWS",
            "layers.0",
            "f16",
            "--kv-type",
            "--device none",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Without both, the missing operation of the other way is named.
        let missing = ["FLASH_ATTN_EXT", "MUL_MAT"];
        let refused = usable(&|op| missing.contains(&&*op.op)).expect_err("no way is left");
        assert!(refused.to_string().contains("MUL_MAT"), "{refused}");
    }

    #[test]
    fn block_tables_are_read_where_every_device_has_them() {
        let reads = |plan: &Plan, may: bool, lacks: &str| {
            let runs = |_: Device, op: &KeptOp| op.op != lacks;
            reads_tables(plan, &options(), &|_| may, &runs).expect("the plan has devices")
        };
        assert!(reads(&placed(), true, ""));
        assert!(!reads(&placed(), true, "FLASH_ATTN_EXT"));
        assert!(!reads(&placed(), true, "SET_ROWS"));
        // Nobody who would ignore a table is asked.
        assert!(!reads(&placed(), false, ""));
        assert!(!reads(&plan(), true, ""));
        let with = Options {
            device_tables: true,
            ..options()
        };
        assert!(with.is_paged(&placed()) && !options().is_paged(&placed()));
        assert!(with.check_deterministic(&placed()).is_err());
        assert!(with.check_deterministic(&plan()).is_ok());
    }

    #[test]
    fn what_stays_on_the_processor_asks_no_device() {
        let found = usable_by(&plan(), options(), &|_, _| false).expect("nobody is asked");
        assert!(found.flash_attn);
    }
}
