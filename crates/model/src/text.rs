//! Characters that a person does not see, or that make others stand elsewhere.

/// Puts text into another order on the screen.
pub fn reorders(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Takes no room on the screen, or shows nothing in it.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Either of the two.
pub fn hides(c: char) -> bool {
    reorders(c) || is_invisible(c)
}

/// More than text to a terminal, or the end of a line to some reader.
pub fn misleads(c: char) -> bool {
    c.is_control() || hides(c)
}
