//! `bench devices`: the devices that can compute, and the operations that they lack for a model; `bench rpc-worker`:
//! lends devices of this machine to others.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use lab_base::ggml::{CACHE_TYPES, Device, DeviceKind, MisplacedOp, build_info, devices, rpc};
use lab_base::util::granted_memory;
use lab_base::util::wording::bytes;
use lab_base::weights::TensorType;
use lab_core::model::{Estimator, Options};
use lab_core::models::{self, OpenedModel};
use lab_core::plan::DeviceShare;

use super::hub::model_source;
use super::options::{OpenOptions, at_most_cores, cores};
use super::placement::{Backends, WorkerOptions};
use super::values::{byte_count, cache_type, positive};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Also list the operations that each device lacks for this model, which the CPU then computes
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// With --model: element type of the KV cache
    #[arg(
        long,
        default_value = "f16",
        value_name = "TYPE",
        value_parser = cache_type,
        requires = "model"
    )]
    kv_type: TensorType,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    workers: WorkerOptions,
    #[command(flatten)]
    opening: OpenOptions,
}

fn kind(device: Device) -> &'static str {
    // ggml counts every device of a worker as a GPU.
    if device.is_remote() {
        return "rpc";
    }
    match device.kind() {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Accelerator => "accelerator",
    }
}

/// Free and total memory of a device. The system tells how much a program can have of the processor's, ggml does not.
fn memory(device: Device) -> (u64, u64) {
    let (free, total) = device.memory();
    let available = granted_memory::available().filter(|_| device.kind() == DeviceKind::Cpu);
    (available.unwrap_or(free as u64), total as u64)
}

/// Number of elements per head in queries about caches: every backend has kernels for it.
const HEAD: u64 = 128;

/// Types of keys and values that a device can store; `None` if it cannot be queried.
fn cache_types(device: Device) -> Result<Option<Vec<TensorType>>, Failure> {
    if device.is_remote() {
        return Ok(None);
    }
    let mut types = Vec::new();
    for ty in CACHE_TYPES {
        if device.can_cache(ty, HEAD)? {
            types.push(ty);
        }
    }
    Ok(Some(types))
}

/// Operations that a device lacks for a model. Key: operation, block, types and length of a row. Value: one of the
/// operations, and their numbers in a pass of 512 tokens and of one.
type MissingOps =
    BTreeMap<(String, &'static str, Vec<&'static str>, u64), (MisplacedOp, [usize; 2])>;

/// The operations that a device lacks for a model, if all layers are on the device.
fn missing_ops(
    opened: &OpenedModel,
    device: Device,
    kv_type: TensorType,
) -> Result<MissingOps, Failure> {
    let mut plan = opened.plan.clone();
    plan.place(&[DeviceShare {
        device: device.name(),
        n_layers: plan.n_placeable(),
    }]);
    let estimator = Estimator::new(&plan, &opened.weights)?;
    let mut all = MissingOps::new();
    for (at, n_batch) in [Options::N_BATCH, 1].into_iter().enumerate() {
        let options = Options {
            k_type: kv_type,
            v_type: kv_type,
            ..Options::plain(Options::N_BATCH, n_batch)
        };
        for found in estimator.lacking(&options)? {
            let (op, types) = (found.op.clone(), found.types.clone());
            let key = (op, found.kind, types, found.shape[0]);
            all.entry(key).or_insert((found, [0; 2])).1[at] += 1;
        }
    }
    Ok(all)
}

/// Dimensions without trailing ones.
fn dimensions(shape: [u64; 4]) -> String {
    let last = shape.iter().rposition(|n| *n != 1).unwrap_or(0);
    let shown = shape[..=last].iter().map(u64::to_string);
    shown.collect::<Vec<_>>().join("x")
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.workers.connect()?;
    let opened = match &args.model {
        Some(model) => {
            let definitions = args.opening.definitions()?;
            Some(models::open(&model_source(Some(model))?, &definitions)?)
        }
        None => None,
    };
    let mut all = Vec::new();
    for device in devices() {
        let types = cache_types(device)?;
        let types = types.map(|types| types.into_iter().map(TensorType::name).collect::<Vec<_>>());
        let lacks = match &opened {
            Some(opened) if device.kind() != DeviceKind::Cpu => {
                Some(missing_ops(opened, device, args.kv_type)?)
            }
            _ => None,
        };
        match args.json {
            true => all.push(to_json(device, types.as_deref(), lacks.as_ref())),
            false => print(device, types.as_deref(), lacks.as_ref())?,
        }
    }
    match args.json {
        true => output::json(&all),
        false => Ok(()),
    }
}

fn print(
    device: Device,
    types: Option<&[&str]>,
    lacks: Option<&MissingOps>,
) -> Result<(), Failure> {
    let (free, total) = memory(device);
    let [free, total] = [free, total].map(bytes);
    let (name, kind) = (device.name(), kind(device));
    let description = output::escape_controls(&device.description());
    output::line(format!(
        "{name}: {kind}, {description}, {free} of {total} free"
    ))?;
    if device.kind() == DeviceKind::Cpu {
        output::line(format!("  instruction set: {}", build_info().march))?;
    }
    let types = match types {
        Some([]) => "none".to_owned(),
        Some(types) => types.join(", "),
        None => "not known: the protocol does not say".to_owned(),
    };
    output::line(format!("  KV cache types: {types}"))?;
    let Some(lacks) = lacks else { return Ok(()) };
    if device.is_remote() {
        return output::line("  lacks for this model: not known: the protocol does not say");
    }
    if lacks.is_empty() {
        return output::line("  lacks for this model: nothing");
    }
    output::line("  lacks for this model (uses in prefill, decode):")?;
    for (op, [prefill, decode]) in lacks.values() {
        let (ty, sources) = op.types.split_first().unwrap_or((&"", &[]));
        output::line(format!(
            "    {} of {}: {ty} {} from {}, the first {} ({prefill}, {decode})",
            op.op,
            op.kind,
            dimensions(op.shape),
            sources.join(", "),
            dimensions(op.of),
        ))?;
    }
    Ok(())
}

fn to_json(device: Device, types: Option<&[&str]>, lacks: Option<&MissingOps>) -> Value {
    let (free, total) = memory(device);
    let mut entry = json!({
        "name": device.name(), "kind": kind(device), "description": device.description(),
        "backend": device.backend_name(), "memory_free": free, "memory_total": total,
        "kv_cache_types": types,
    });
    if device.kind() == DeviceKind::Cpu {
        entry["instruction_set"] = json!(build_info().march);
    }
    if let Some(lacks) = lacks.filter(|_| !device.is_remote()) {
        let lacks = lacks.values().map(|(op, [prefill, decode])| {
            json!({
                "operation": op.op, "block": op.kind, "types": op.types, "shape": dimensions(op.shape),
                "first_source": dimensions(op.of), "uses_in_prefill": prefill, "uses_in_decode": decode,
            })
        });
        entry["lacks"] = lacks.collect();
    }
    entry
}

#[derive(Debug, ClapArgs)]
pub(super) struct WorkerArgs {
    /// Port to listen on, 1 to 65535
    #[arg(
        long,
        default_value_t = 50052,
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    port: u16,
    /// IPv4 address to listen on (ggml's worker supports no other). The protocol has neither encryption nor
    /// authentication, and a client can take over this process: use another address than 127.0.0.1 only in a network
    /// that you trust
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST, value_name = "ADDRESS")]
    host: Ipv4Addr,
    /// Number of compute threads, 1 or more, at most one per core; default: one per core
    #[arg(short, long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
    /// Maximum memory to lend on each device, in bytes, such as 512M or 8G; larger allocations are refused; default:
    /// the free memory
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    mem: Option<u64>,
    /// Devices to lend, by the names that `bench devices` prints; default: the GPUs, or else the CPU
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    device: Vec<String>,
    #[command(flatten)]
    backends: Backends,
}

pub(super) fn lend(args: &WorkerArgs) -> Result<(), Failure> {
    args.backends.load()?;
    let named = args.device.iter().map(|name| Device::named(name));
    let mut lent = named.collect::<Result<Vec<Device>, _>>()?;
    if args.device.is_empty() {
        lent = devices();
        let is_gpu = |device: &Device| device.kind() == DeviceKind::Gpu;
        let has_gpu = lent.iter().any(is_gpu);
        lent.retain(|device| is_gpu(device) || !has_gpu);
    }
    if !args.host.is_loopback() {
        tracing::warn!(
            address = %args.host,
            "anyone who reaches this address can use this machine: the protocol has no authentication"
        );
    }
    let n_threads = args.threads.map_or_else(cores, at_most_cores);
    let address = format!("{}:{}", args.host, args.port);
    Ok(rpc::serve(&address, &lent, n_threads, args.mem)?)
}
