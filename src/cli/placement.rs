//! The options that place layers on devices, and the placement that they resolve to.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use clap::Args;

use lab_base::ggml::{Device, DeviceKind, devices, load_found, load_library, rpc};
use lab_base::util::granted_memory;
use lab_base::util::wording::bytes;
use lab_core::model::{DeviceUse, Estimator, Options, PlacementSearch, TowerUse, drafter_memory};
use lab_core::models::OpenedModel;
use lab_core::models::towers::{OpenedMedia, OpenedTower, path_prefix};
use lab_core::plan::{DeviceOverride, PROCESSOR, Plan};

use super::Failure;
use super::values::seconds;

/// Backends that are loaded while the program runs.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Backends {
    /// ggml backend library whose devices are used (docs/gpu.md); may be repeated; libraries next to the program and
    /// in the folder BENCH_BACKEND_DIR are loaded without it. `plain` = no library, but a slow float64 reference
    /// implementation of every operation, which is independent of the kernels
    #[arg(long, value_name = "FILE|plain", hide_short_help = true)]
    backend: Vec<PathBuf>,
}

impl Backends {
    /// Loads the named libraries, and once per process those that are found by the search.
    pub(super) fn load(&self) -> Result<(), Failure> {
        for path in self.backend.iter().filter(|path| !is_plain(path)) {
            load_library(path)?;
        }
        let _without_device = without_device();
        Ok(())
    }

    /// Whether the reference implementation by plain loops computes all operations.
    fn are_plain(&self) -> bool {
        self.backend.iter().any(|path| is_plain(path))
    }
}

/// Loads the libraries that the search finds, once per process. Returns why some have no device here.
fn without_device() -> &'static [String] {
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut harmless = Vec::new();
        for error in load_found() {
            match error.is_harmless() {
                true => {
                    tracing::info!("{error}");
                    harmless.push(error.to_string());
                }
                false => tracing::warn!("{error}"),
            }
        }
        harmless
    })
}

fn why_no_gpu() -> String {
    let built_in = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));
    match without_device() {
        [] if built_in => "the program's GPU backend finds no device".to_owned(),
        [] => {
            "the program has no GPU backend, and there is none next to it (docs/gpu.md)".to_owned()
        }
        reasons => reasons.join("; "),
    }
}

fn is_plain(path: &Path) -> bool {
    path == Path::new("plain")
}

/// Number of layers that are not on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GpuLayers {
    #[default]
    Auto,
    All,
    Count(usize),
}

impl std::str::FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            n => match n.parse() {
                Ok(n) => Ok(Self::Count(n)),
                Err(_) => Err("expected a number of layers, `auto` or `all`".to_owned()),
            },
        }
    }
}

impl GpuLayers {
    /// Says, once, that there is no GPU for the layers that are wanted there.
    fn report_none(self) {
        let wanted = match self {
            Self::Auto | Self::Count(0) => return,
            Self::All => "all".to_owned(),
            Self::Count(n) => n.to_string(),
        };
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            tracing::warn!(
                "--gpu-layers {wanted}: there is no GPU and no RPC worker, so everything runs on the CPU: {}",
                why_no_gpu()
            );
        });
    }
}

fn to_move(text: &str) -> Result<DeviceOverride, String> {
    let parts = text.rsplit_once('=');
    let parts = parts.filter(|(pattern, device)| !pattern.is_empty() && !device.is_empty());
    let (pattern, device) =
        parts.ok_or("expected PATTERN=DEVICE, such as 'layers.*.ffn*=CPU'".to_owned())?;
    Ok(DeviceOverride {
        pattern: pattern.to_owned(),
        device: device.to_owned(),
    })
}

/// Which layers run on which devices.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct PlacementOptions {
    /// Number of layers on GPUs and RPC workers, counted from the last one; the output head counts as a layer; 0 =
    /// CPU only; auto = as many as fit; all = every layer, refused if they do not fit; without such a device
    /// everything is on the CPU; default: auto
    #[arg(long, value_name = "N|auto|all", alias = "n-gpu-layers")]
    gpu_layers: Option<GpuLayers>,
    /// Memory that `--gpu-layers auto` leaves free on each device, in MiB; 0 = none; default: 1024
    #[arg(long, value_name = "MIB", hide_short_help = true)]
    fit_target: Option<u64>,
    /// GPUs and RPC devices to use, by the names that `bench devices` prints, in the order of the layers; none = CPU
    /// only; default: all
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    device: Vec<String>,
    /// Share of the offloaded layers for each device, 0 or more, such as 3,1; default: with `--gpu-layers auto` one
    /// device is filled after another, with a number the layers are shared in proportion to free memory
    #[arg(
        long,
        value_name = "SHARE,...",
        value_delimiter = ',',
        hide_short_help = true
    )]
    tensor_split: Vec<f64>,
    /// Blocks on another device than their layer, by the paths that `bench plan` prints, where * stands for any
    /// characters, such as 'layers.*.ffn*=CPU'; may be repeated, the first match counts
    #[arg(long, value_name = "PATTERN=DEVICE", value_parser = to_move, hide_short_help = true)]
    place: Vec<DeviceOverride>,
    #[command(flatten)]
    workers: WorkerOptions,
}

/// Devices of other machines.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct WorkerOptions {
    /// RPC workers (`bench rpc-worker`) whose devices are used. The protocol has neither encryption nor
    /// authentication: use it only in networks that you trust
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        hide_short_help = true
    )]
    rpc: Vec<String>,
    /// RPC timeout: maximum time for one response of an RPC worker in seconds; then the requests that it computes for
    /// fail; 0 = no limit
    #[arg(
        long,
        default_value = "300",
        value_name = "SECONDS",
        value_parser = seconds,
        hide_short_help = true
    )]
    rpc_time: Duration,
    #[command(flatten)]
    backends: Backends,
}

impl WorkerOptions {
    /// Loads backend libraries, and connects to the RPC workers that are named.
    pub(super) fn connect(&self) -> Result<(), Failure> {
        self.backends.load()?;
        let limit = (!self.rpc_time.is_zero()).then_some(self.rpc_time);
        for endpoint in &self.rpc {
            rpc::connect(endpoint, limit)?;
        }
        Ok(())
    }
}

/// MiB of each device that automatic placement leaves free for other programs and the device's own libraries.
const MARGIN: u64 = 1024;
/// Maximum number of paths that are listed when a pattern matches none.
const SHOWN: usize = 12;

impl PlacementOptions {
    /// Whether layers may be placed on other devices than the processor. Workers are not asked: a model is described while they are
    /// away too.
    pub(super) fn has_devices(&self) -> Result<bool, Failure> {
        let is_none = self.device == ["none"] || self.gpu_layers == Some(GpuLayers::Count(0));
        if self.is_plain() || is_none {
            return Ok(false);
        }
        self.workers.backends.load()?;
        Ok(!self.workers.rpc.is_empty() || !self.devices()?.is_empty())
    }

    /// Places the layers of a model on devices, for a run with these options.
    pub(super) fn place(&self, opened: &mut OpenedModel, options: &Options) -> Result<(), Failure> {
        self.workers.connect()?;
        let devices = match options.plain {
            true => Vec::new(),
            false => self.devices()?,
        };
        let shares = self.shares(&devices)?;
        self.check_moves(opened)?;
        let placing = PlacementSearch {
            plan: &opened.plan,
            weights: &opened.weights,
            adapters: &opened.adapters,
            options,
            devices: &devices,
            shares,
            moves: &self.place,
            margin: self.fit_target.unwrap_or(MARGIN).saturating_mul(1 << 20),
        };
        let n_placeable = opened.plan.n_placeable();
        let wanted = self.gpu_layers.unwrap_or_default();
        if devices.is_empty() && !options.plain && self.device.is_empty() {
            wanted.report_none();
        }
        let split = match wanted {
            _ if devices.is_empty() => Vec::new(),
            GpuLayers::Auto => {
                let split = placing.auto()?;
                if split.iter().all(|n| *n == 0) {
                    tracing::warn!(
                        margin = bytes(placing.margin),
                        "no layer fits into the other devices, less what stays free there (--fit-target)"
                    );
                }
                split
            }
            GpuLayers::All => placing.count(n_placeable)?,
            GpuLayers::Count(n) => placing.count(n.min(n_placeable))?,
        };
        let margin = match wanted {
            GpuLayers::Auto => placing.margin,
            _ => 0,
        };
        opened.plan = placing.placed(&split, margin)?;
        if opened.media.is_none() && opened.drafter.is_none() {
            return Ok(());
        }
        let used = match opened.plan.devices.is_empty() {
            true => Vec::new(),
            false => {
                let (plan, adapters) = (&opened.plan, &opened.adapters);
                let mut estimator = Estimator::with(plan, &opened.weights, adapters)?;
                estimator.memory(options)?.devices
            }
        };
        let used = self.place_drafter(opened, used, options)?;
        match &mut opened.media {
            Some(media) => self.place_towers(media, &opened.plan, used, options),
            None => Ok(()),
        }
    }

    /// Places the drafter where the last layer of the model is, if there is room for it beside what is `used` there, and on the processor
    /// otherwise. Returns what is used then.
    fn place_drafter(
        &self,
        opened: &mut OpenedModel,
        used: Vec<DeviceUse>,
        options: &Options,
    ) -> Result<Vec<DeviceUse>, Failure> {
        let Some(drafter) = &mut opened.drafter else {
            return Ok(used);
        };
        let before = drafter.plan.clone();
        drafter.place_like(&opened.plan);
        let model = (&opened.weights, &opened.plan);
        let mut all = used.clone();
        DeviceUse::merge(&mut all, &drafter_memory(drafter, model, options)?.devices);
        let Some(name) = drafter.plan.devices.first().cloned() else {
            return Ok(all);
        };
        let free = Device::named(&name)?.free_memory();
        let there = all.iter().find(|of| of.device == name);
        let margin = self.margin();
        let needed = there.map_or(0, DeviceUse::taken).saturating_add(margin);
        if free.is_some_and(|free| needed > free) {
            tracing::warn!("{name} has no room for the drafter: the CPU computes it");
            drafter.plan = before;
            all = used;
            DeviceUse::merge(&mut all, &drafter_memory(drafter, model, options)?.devices);
        }
        Ok(all)
    }

    /// Bytes that stay free on each device.
    fn margin(&self) -> u64 {
        match self.gpu_layers.unwrap_or_default() {
            GpuLayers::Auto => self.fit_target.unwrap_or(MARGIN).saturating_mul(1 << 20),
            _ => 0,
        }
    }

    /// Places each tower on the first device that has layers of the model, if there is room for it beside what is `used` there, and on
    /// the processor otherwise.
    fn place_towers(
        &self,
        media: &mut OpenedMedia,
        model: &Plan,
        mut used: Vec<DeviceUse>,
        options: &Options,
    ) -> Result<(), Failure> {
        let first = model.devices.first();
        let free = first.map(|name| Device::named(name)).transpose()?;
        let free = free.and_then(|device| device.free_memory());
        let margin = self.margin();
        for tower in &mut media.towers {
            let sample = media.processors.sample(tower.media, NonZeroU32::MIN);
            let taken = |tower: &OpenedTower| {
                let sample = sample.as_ref().ok()?;
                TowerUse::of(tower, &media.processors, sample, options).ok()
            };
            let before = tower.plan.clone();
            tower.place(first.map(String::as_str), &self.place);
            let mut all = used.clone();
            let own = taken(tower);
            DeviceUse::merge(&mut all, own.as_ref().map_or(&[], |own| &own.devices));
            let on_first = all.iter().find(|of| Some(&of.device) == first);
            let on_first = on_first.map_or(0, DeviceUse::taken);
            let has_room = free.is_none_or(|free| on_first <= free.saturating_sub(margin));
            if let (Some(name), false) = (first, has_room && own.is_some()) {
                let media = tower.media.name();
                tracing::warn!("{name} has no room for the tower of {media}s: the CPU computes it");
                tower.plan = before;
                tower.place(None, &self.place);
                all = used;
                DeviceUse::merge(
                    &mut all,
                    taken(tower).as_ref().map_or(&[], |own| &own.devices),
                );
            }
            used = all;
        }
        Ok(())
    }

    /// Whether the reference implementation by plain loops computes all operations.
    pub(super) fn is_plain(&self) -> bool {
        self.workers.backends.are_plain()
    }

    /// Free bytes where the layers of a model go: on the devices, else in main memory; none where that is not known, as of
    /// RPC workers. For a description no device is asked.
    pub(super) fn free_memory(&self, is_described: bool) -> Result<Option<u64>, Failure> {
        if !self.workers.rpc.is_empty() {
            return Ok(None);
        }
        let devices = match self.gpu_layers {
            _ if is_described => Vec::new(),
            Some(GpuLayers::Count(0)) => Vec::new(),
            _ => {
                self.workers.backends.load()?;
                self.devices()?
            }
        };
        if devices.is_empty() {
            return Ok(granted_memory::available());
        }
        let free = devices.iter().map(|device| device.free_memory());
        Ok(free.sum())
    }

    /// The devices to use besides the CPU.
    fn devices(&self) -> Result<Vec<Device>, Failure> {
        let is_gpu =
            |device: &Device| matches!(device.kind(), DeviceKind::Gpu | DeviceKind::IntegratedGpu);
        if self.device.is_empty() {
            return Ok(devices().into_iter().filter(is_gpu).collect());
        }
        let mut named: Vec<Device> = Vec::with_capacity(self.device.len());
        for name in self.device.iter().filter(|name| *name != "none") {
            let device = Device::named(name)?;
            if device.kind() == DeviceKind::Cpu {
                anyhow::bail!(
                    "--device {name}: this is the CPU, which computes all layers left over; expected a GPU or RPC device, or `none` for the CPU alone"
                );
            }
            if named.contains(&device) {
                anyhow::bail!("--device: {name} is named twice");
            }
            named.push(device);
        }
        Ok(named)
    }

    fn shares(&self, devices: &[Device]) -> Result<Option<&[f64]>, Failure> {
        if self.tensor_split.is_empty() {
            return Ok(None);
        }
        let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
        let total: f64 = self.tensor_split.iter().sum();
        if self.tensor_split.len() != devices.len()
            || !self.tensor_split.iter().all(is_share)
            || !total.is_finite()
            || total <= 0.0
        {
            anyhow::bail!(
                "--tensor-split: expected a share, 0 or more, for each of {} devices, found {:?}",
                devices.len(),
                self.tensor_split
            );
        }
        Ok(Some(&self.tensor_split))
    }

    /// Refuses a `--place` whose pattern matches nothing or whose device does not exist.
    fn check_moves(&self, opened: &OpenedModel) -> Result<(), Failure> {
        let towers = opened.media.iter().flat_map(|media| &media.towers);
        let of_towers = towers.flat_map(|tower| {
            let prefix = path_prefix(tower.media);
            let paths = tower.plan.placeable();
            paths.map(move |path| format!("{prefix}{path}"))
        });
        let own = opened.plan.placeable().map(str::to_owned);
        let paths: Vec<String> = own.chain(of_towers).collect();
        for to in &self.place {
            if to.device != PROCESSOR {
                Device::named(&to.device)?;
            }
            if !paths.iter().any(|path| to.matches(path)) {
                anyhow::bail!(
                    "--place: `{}` matches no block; found {}",
                    to.pattern,
                    kinds_of_paths(&paths).join(", ")
                );
            }
        }
        Ok(())
    }
}

/// Paths with numbers replaced by `*`, each once and at most [`SHOWN`].
fn kinds_of_paths(paths: &[String]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for path in paths {
        let parts = path.split('.');
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let parts = parts.map(|part| if is_number(part) { "*" } else { part });
        let kind = parts.collect::<Vec<_>>().join(".");
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.truncate(SHOWN);
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_and_numbers_of_layers_are_read() {
        let found = to_move("layers.*.moe=RPC0[1.2.3.4:5]").expect("a move");
        assert_eq!(
            (&*found.pattern, &*found.device),
            ("layers.*.moe", "RPC0[1.2.3.4:5]")
        );
        for wrong in ["", "x", "=CPU", "x="] {
            assert!(to_move(wrong).is_err(), "{wrong}");
        }
        assert_eq!("auto".parse(), Ok(GpuLayers::Auto));
        assert_eq!("3".parse(), Ok(GpuLayers::Count(3)));
        assert!("-1".parse::<GpuLayers>().is_err());
    }
}
