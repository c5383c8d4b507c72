//! `bench arch`: the definitions.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Subcommand;

use crate::arch::expr::Expr;
use crate::arch::{ArchDef, Instance, LibraryError, ParamSource, Presence, Setting};

use super::options::ArchOptions;
use super::{Failure, output};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Name all definitions with their state
    List {
        #[command(flatten)]
        archs: ArchOptions,
    },
    /// Report every problem of definition files
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print a definition with all defaults filled in
    Show {
        /// The architecture
        name: String,
        #[command(flatten)]
        archs: ArchOptions,
    },
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List { archs } => list(archs),
        Command::Check { files } => check(files),
        Command::Show { name, archs } => {
            let def = archs.library()?.get(name).map_err(styled)?;
            output::bytes(show(&def).as_bytes())
        }
    }
}

/// Problems of a definition in colour where a person reads them.
fn styled(error: LibraryError) -> Failure {
    match error {
        LibraryError::Broken(problems) if std::io::stderr().is_terminal() => {
            anyhow::anyhow!("{}", problems.render(true))
        }
        other => other.into(),
    }
}

fn list(archs: &ArchOptions) -> Result<(), Failure> {
    let library = archs.library()?;
    let mut text = String::new();
    for (name, source) in library.sources() {
        let place = if source.is_embedded {
            "built in"
        } else {
            source.path.as_str()
        };
        let state = match library.get(name) {
            Ok(def) => format!(
                "{}  {}",
                def.mode.name(),
                def.notes.lines().next().unwrap_or_default()
            ),
            Err(LibraryError::Broken(problems)) => {
                format!("BROKEN ({} problems)", problems.problems().len())
            }
            Err(other) => other.to_string(),
        };
        text.push_str(&format!("{name:16} {place:10} {state}\n"));
    }
    output::bytes(text.as_bytes())
}

fn check(files: &[PathBuf]) -> Result<(), Failure> {
    let library = crate::arch::Library::open(&crate::blocks::REGISTRY, &[])?;
    let mut broken = 0;
    for file in files {
        let path = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| anyhow::anyhow!("{path}: {e}"))?;
        match library.check(&path, &text) {
            Ok(_) => output::line(format!("{path}: sound"))?,
            Err(problems) => {
                broken += 1;
                let colour = std::io::stdout().is_terminal();
                output::line(problems.render(colour))?;
            }
        }
    }
    if broken > 0 {
        anyhow::bail!("{broken} of {} definitions have problems", files.len());
    }
    Ok(())
}

fn show(def: &ArchDef) -> String {
    let mut out = String::new();
    for line in def.notes.lines() {
        out.push_str(&format!("# {line}\n"));
    }
    out.push_str(&format!(
        "\nname = \"{}\"\nmode = \"{}\"\n\n[params]\n",
        def.name,
        def.mode.name()
    ));
    for (name, param) in &def.params {
        let text = match &param.source {
            ParamSource::Derived(expr) => format!("{expr:?}", expr = expr.source()),
            ParamSource::Key {
                keys,
                absolute,
                default,
                ..
            } => {
                let field = if *absolute { "global_key" } else { "key" };
                let default = default
                    .as_ref()
                    .map(|d| format!(", default = {:?}", d.source()))
                    .unwrap_or_default();
                format!("{{ {field} = {keys:?}{default} }}")
            }
        };
        out.push_str(&format!("{name} = {text}\n"));
    }
    for ((kind, name), instance) in &def.resources {
        out.push_str(&format!("\n[{}.{name}]\n", kind.name()));
        instance_text(&mut out, &instance.value);
    }
    out.push_str("\n[embed]\n");
    instance_text(&mut out, &def.embed);
    if let Some(per_layer) = &def.per_layer {
        out.push_str("\n[per_layer_input]\n");
        instance_text(&mut out, per_layer);
    }
    for stack in &def.stacks {
        out.push_str(&format!(
            "\n[[stack]]\nname = \"{}\"\nprefix = \"{}\"\ncount = \"{}\"\n",
            stack.name, stack.prefix, stack.count
        ));
        for slot in &stack.slots {
            out.push_str(&format!("\n[[stack.slot]]\nname = \"{}\"\n", slot.name));
            optional(&mut out, "when", slot.when.as_ref());
            for (key, setting) in [
                ("pre", &slot.pre),
                ("post", &slot.post),
                ("scale", &slot.scale),
                ("after", &slot.after),
            ] {
                optional(&mut out, key, setting.as_ref().map(|s: &Setting| &s.expr));
            }
            for branch in &slot.branches {
                out.push_str(&format!(
                    "\n[[stack.slot.branch]]\nname = \"{}\"\nblock = \"{}\"\n",
                    branch.name, branch.block.contract.name
                ));
                optional(&mut out, "when", branch.when.as_ref());
                instance_text(&mut out, &branch.block);
            }
        }
    }
    if let Some(head) = &def.head {
        out.push_str("\n[head]\n");
        optional(&mut out, "norm", head.norm.as_ref().map(|s| &s.expr));
        instance_text(&mut out, &head.unit);
    }
    out
}

fn optional(out: &mut String, key: &str, expr: Option<&Expr>) {
    if let Some(expr) = expr {
        out.push_str(&format!("{key} = \"{expr}\"\n"));
    }
}

fn instance_text(out: &mut String, instance: &Instance) {
    for (spec, setting) in instance.contract.options.iter().zip(&instance.options) {
        out.push_str(&format!(
            "{} = \"{}\"  # {}\n",
            spec.name, setting.expr, spec.doc
        ));
    }
    for (spec, weight) in instance.contract.weights.iter().zip(&instance.weights) {
        let shape: Vec<&str> = weight.shape.iter().map(Expr::source).collect();
        let presence = match weight.presence {
            Presence::Required => "required",
            Presence::Optional => "optional",
            Presence::Forbidden => "forbidden",
        };
        out.push_str(&format!(
            "# weight {}: {} [{}], {presence}{}\n",
            spec.key,
            weight.tensor,
            shape.join(", "),
            if spec.when == "true" {
                String::new()
            } else {
                format!(", when {}", spec.when)
            }
        ));
    }
}
