//! The notation for another order of a stored tensor's elements: `(h two d) k -> (h d two) k`.
//!
//! The notation is that of einops: every axis of the left side is a product of named axes, slowest first, and the right
//! side lists each of them once, in the new order. `...` stands for the remaining axes, `1` for an axis of one element.
//! Missing sizes follow from the tensor; a tensor that the sizes do not divide exactly is refused. The result is a
//! [`View`]: no element is moved here.

use std::collections::BTreeMap;

/// An axis: its size, and the distance of its elements in the stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) size: u64,
    pub(super) stride: u64,
}

/// The order in which the elements of a stored tensor are read, slowest axis first. Each axis is a product of axes of
/// the stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) axes: Vec<Vec<Axis>>,
    /// The place of the first element.
    pub(super) offset: u64,
}

/// A parsed notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    left: Vec<PatternAxis>,
    right: Vec<PatternAxis>,
}

/// One axis of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternAxis {
    /// The product of these names; empty: one element.
    Names(Vec<String>),
    Rest,
}

impl View {
    /// A whole tensor of this shape (slowest axis first) in its stored order.
    pub(super) fn whole(shape: &[u64]) -> Self {
        let mut stride = 1;
        let mut axes: Vec<Vec<Axis>> = shape
            .iter()
            .rev()
            .map(|&size| {
                let axis = Axis { size, stride };
                stride *= size;
                vec![axis]
            })
            .collect();
        axes.reverse();
        Self { axes, offset: 0 }
    }

    /// Sizes of the axes, slowest first.
    pub(super) fn shape(&self) -> Vec<u64> {
        let size = |axes: &Vec<Axis>| axes.iter().map(|axis| axis.size).product();
        self.axes.iter().map(size).collect()
    }

    /// One element of the slowest axis; the axis is removed.
    pub(super) fn at(mut self, index: u64) -> Result<Self, String> {
        let axis = self.slowest()?;
        if index >= axis.size {
            return Err(format!(
                "there is no element {index} in an axis of {}",
                axis.size
            ));
        }
        self.offset += index * axis.stride;
        self.axes.remove(0);
        Ok(self)
    }

    /// The elements `start..end` of the slowest axis.
    pub(super) fn slice(mut self, start: u64, end: u64) -> Result<Self, String> {
        let axis = self.slowest()?;
        if start >= end || end > axis.size {
            return Err(format!(
                "{start}..{end} is outside an axis of {}",
                axis.size
            ));
        }
        self.offset += start * axis.stride;
        self.axes[0] = vec![Axis {
            size: end - start,
            ..axis
        }];
        Ok(self)
    }

    fn slowest(&self) -> Result<Axis, String> {
        match self.axes.first().map(Vec::as_slice) {
            Some([axis]) => Ok(*axis),
            Some(_) => Err("a part can only be taken of an axis that is not a product".into()),
            None => Err("a tensor without axes has no parts".into()),
        }
    }
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (left, right) = text
            .split_once("->")
            .ok_or("expected `AXES -> AXES`, found no `->`")?;
        let pattern = Self {
            left: groups(left)?,
            right: groups(right)?,
        };
        let (left, right) = (names(&pattern.left)?, names(&pattern.right)?);
        let differs = |a: &[&str], b: &[&str]| {
            a.iter()
                .find(|name| !b.contains(name))
                .map(|n| (*n).to_owned())
        };
        if let Some(name) = differs(&left, &right) {
            return Err(format!("`{name}` stands only on the left"));
        }
        match differs(&right, &left) {
            Some(name) => Err(format!("`{name}` stands only on the right")),
            None => Ok(pattern),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.left
            .iter()
            .flat_map(|group| match group {
                PatternAxis::Names(names) => names.as_slice(),
                PatternAxis::Rest => &[],
            })
            .map(String::as_str)
    }

    /// The view of a tensor of this shape (slowest axis first) with the known sizes. Each axis in `take` is limited to
    /// the range from its first number up to the second.
    pub(super) fn view(
        &self,
        shape: &[u64],
        sizes: &BTreeMap<&str, u64>,
        take: &BTreeMap<&str, (u64, u64)>,
    ) -> Result<View, String> {
        let has_rest = self.left.contains(&PatternAxis::Rest);
        let n_named = self.left.len() - usize::from(has_rest);
        if shape.len() < n_named || (!has_rest && shape.len() > n_named) {
            return Err(format!("{} axes, expected {n_named}", shape.len()));
        }
        let n_rest = shape.len() - n_named;
        let mut whole = View::whole(shape).axes.into_iter();
        let mut found: BTreeMap<&str, Axis> = BTreeMap::new();
        let mut rest = Vec::new();
        for group in &self.left {
            match group {
                PatternAxis::Rest => rest.extend(whole.by_ref().take(n_rest)),
                PatternAxis::Names(names) => {
                    let axis = whole.next().and_then(|axes| axes.first().copied());
                    let axis = axis.ok_or("too few axes")?;
                    split(names, axis, sizes, &mut found)?;
                }
            }
        }
        let mut offset = 0;
        for (name, axis) in &mut found {
            if let Some(&(start, end)) = take.get(name) {
                if start >= end || end > axis.size {
                    return Err(format!(
                        "{start}..{end} is outside {name}, which has {}",
                        axis.size
                    ));
                }
                offset += start * axis.stride;
                axis.size = end - start;
            }
        }
        let mut axes = Vec::with_capacity(shape.len());
        for group in &self.right {
            match group {
                PatternAxis::Rest => axes.append(&mut rest),
                PatternAxis::Names(names) => {
                    axes.push(names.iter().map(|name| found[name.as_str()]).collect());
                }
            }
        }
        Ok(View { axes, offset })
    }
}

/// Divides an axis among names, of which at most one has no known size.
fn split<'n>(
    names: &'n [String],
    axis: Axis,
    sizes: &BTreeMap<&str, u64>,
    found: &mut BTreeMap<&'n str, Axis>,
) -> Result<(), String> {
    let known = |name: &String| sizes.get(name.as_str()).copied();
    let product = names
        .iter()
        .filter_map(known)
        .try_fold(1u64, u64::checked_mul)
        .filter(|product| *product > 0);
    let unknown: Vec<&String> = names.iter().filter(|name| known(name).is_none()).collect();
    let fits = product.is_some_and(|product| match unknown.len() {
        0 => product == axis.size,
        _ => axis.size.is_multiple_of(product),
    });
    if unknown.len() > 1 {
        return Err(format!(
            "the sizes of `{}` and `{}` are both unknown",
            unknown[0], unknown[1]
        ));
    }
    let (true, Some(product)) = (fits, product) else {
        let sizes = names.iter().map(|name| match known(name) {
            Some(size) => format!("{name} = {size}"),
            None => name.clone(),
        });
        let sizes: Vec<String> = sizes.collect();
        return Err(format!(
            "an axis of {} elements is not the product of ({})",
            axis.size,
            sizes.join(", ")
        ));
    };
    let mut stride = axis.stride;
    for name in names.iter().rev() {
        let size = known(name).unwrap_or(axis.size / product);
        found.insert(name, Axis { size, stride });
        stride *= size;
    }
    Ok(())
}

fn groups(side: &str) -> Result<Vec<PatternAxis>, String> {
    let mut out = Vec::new();
    let mut open: Option<Vec<String>> = None;
    let spaced = side.replace('(', " ( ").replace(')', " ) ");
    for word in spaced.split_whitespace() {
        match (word, &mut open) {
            ("(", None) => open = Some(Vec::new()),
            (")", Some(_)) => out.push(PatternAxis::Names(open.take().unwrap_or_default())),
            ("...", None) => out.push(PatternAxis::Rest),
            ("1", None) => out.push(PatternAxis::Names(Vec::new())),
            (name, open) if is_name(name) => match open {
                Some(names) => names.push(name.to_owned()),
                None => out.push(PatternAxis::Names(vec![name.to_owned()])),
            },
            (word, _) => return Err(format!("unexpected `{word}`")),
        }
    }
    match open {
        Some(_) => Err("a `(` is not closed".into()),
        None => Ok(out),
    }
}

fn is_name(word: &str) -> bool {
    let mut chars = word.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The names of a side; each may occur once.
fn names(side: &[PatternAxis]) -> Result<Vec<&str>, String> {
    let mut out = Vec::new();
    for group in side {
        match group {
            PatternAxis::Rest => out.push("..."),
            PatternAxis::Names(names) => out.extend(names.iter().map(String::as_str)),
        }
    }
    let mut sorted = out.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("`{}` stands twice on one side", pair[0])),
        None => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Indices of the stored elements, in the order of a view.
    fn order(view: &View) -> Vec<u64> {
        let mut out = vec![view.offset];
        for axis in view.axes.iter().flatten() {
            out = out
                .iter()
                .flat_map(|base| (0..axis.size).map(move |i| base + i * axis.stride))
                .collect();
        }
        out
    }

    fn view(pattern: &str, shape: &[u64], sizes: &[(&str, u64)]) -> Result<View, String> {
        Pattern::parse(pattern)?.view(shape, &sizes.iter().copied().collect(), &BTreeMap::new())
    }

    #[test]
    fn halves_of_heads_become_pairs() {
        let found = view(
            "(h two d) k -> (h d two) k",
            &[8, 3],
            &[("h", 2), ("two", 2)],
        )
        .expect("it fits");
        assert_eq!(found.shape(), [8, 3]);
        let rows: Vec<u64> = order(&found).chunks(3).map(|row| row[0] / 3).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn transposed_squeezed_and_in_parts() {
        let transposed = view("a b -> b a", &[2, 3], &[]).expect("it fits");
        assert_eq!(order(&transposed), [0, 3, 1, 4, 2, 5]);
        let squeezed = view("c 1 k -> c k", &[2, 1, 3], &[]).expect("it fits");
        assert_eq!(squeezed.shape(), [2, 3]);
        let fused = |part| {
            view(
                "(h three d) ... -> three (h d) ...",
                &[12, 2],
                &[("h", 2), ("three", 3)],
            )
            .and_then(|v: View| v.at(part))
            .expect("it fits")
        };
        assert_eq!(fused(1).shape(), [4, 2]);
        assert_eq!(order(&fused(1)), [4, 5, 6, 7, 16, 17, 18, 19]);
        let sliced = View::whole(&[5, 2]).slice(3, 5).expect("it fits");
        assert_eq!(order(&sliced), [6, 7, 8, 9]);
    }

    #[test]
    fn what_does_not_fit_exactly_is_refused() {
        let message = |pattern, shape: &[u64], sizes: &[(&str, u64)]| {
            view(pattern, shape, sizes).expect_err("refused")
        };
        assert_eq!(
            message("(h d) k -> h d k", &[10, 2], &[("h", 4)]),
            "an axis of 10 elements is not the product of (h = 4, d)"
        );
        assert_eq!(
            message("(h d) -> h d", &[12], &[("h", 4), ("d", 2)]),
            "an axis of 12 elements is not the product of (h = 4, d = 2)"
        );
        assert_eq!(
            message("(h d) -> h d", &[12], &[]),
            "the sizes of `h` and `d` are both unknown"
        );
        assert_eq!(
            message("(h d) -> h d", &[12], &[("h", 0)]),
            "an axis of 12 elements is not the product of (h = 0, d)"
        );
        assert_eq!(
            message("1 k -> k", &[2, 3], &[]),
            "an axis of 2 elements is not the product of ()"
        );
        assert_eq!(message("a b -> b a", &[2, 3, 4], &[]), "3 axes, expected 2");
        assert_eq!(
            message("a b -> b", &[2, 3], &[]),
            "`a` stands only on the left"
        );
        assert_eq!(
            message("a -> a b", &[2], &[]),
            "`b` stands only on the right"
        );
        assert_eq!(
            message("a a -> a", &[2], &[]),
            "`a` stands twice on one side"
        );
        assert_eq!(message("(a -> a", &[2], &[]), "a `(` is not closed");
        assert_eq!(message("a ) -> a", &[2], &[]), "unexpected `)`");
        assert_eq!(
            message("a b", &[2], &[]),
            "expected `AXES -> AXES`, found no `->`"
        );
        let part = View::whole(&[4, 2]);
        assert_eq!(
            part.clone().at(4).expect_err("refused"),
            "there is no element 4 in an axis of 4"
        );
        assert_eq!(
            part.slice(2, 5).expect_err("refused"),
            "2..5 is outside an axis of 4"
        );
    }

    proptest! {
        #[test]
        fn every_element_is_read_once(h in 1..4u64, two in 1..3u64, d in 1..5u64, k in 1..4u64) {
            let sizes = [("h", h), ("two", two)];
            for pattern in ["(h two d) k -> (d two h) k", "(h two d) k -> k d (h two)", "(h two d) ... -> two ... (h d)"] {
                let found = view(pattern, &[h * two * d, k], &sizes).expect("it fits");
                let mut all = order(&found);
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..h * two * d * k));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9().> -]{0,30}") {
            if let Ok(pattern) = Pattern::parse(&text) {
                let _ = pattern.view(&[2, 3], &BTreeMap::new(), &BTreeMap::new());
            }
        }
    }
}
