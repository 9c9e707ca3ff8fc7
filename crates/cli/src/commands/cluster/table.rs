//! Tables for people: columns as wide as what is in them.

/// Lines of columns, two spaces apart.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes as people read it.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let text = table(&[row("NODE", "OWNS"), row("a", ""), row("longer", "shard 0")]);
        assert_eq!(text, "NODE    OWNS\na\nlonger  shard 0\n");
    }

    #[test]
    fn sizes_are_in_units_that_fit() {
        let all = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")];
        for (bytes, text) in all {
            assert_eq!(size(bytes), text);
        }
    }
}
