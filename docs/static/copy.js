// Adds a button to each block of code that copies its text; of a console, its commands.
function textOf(block) {
  const text = block.querySelector("pre").textContent;
  if (!block.closest(".highlight-console")) return text;
  const commands = [];
  let end; // of a here document
  for (const line of text.split("\n")) {
    if (line.startsWith("$ ")) {
      commands.push(line.slice(2));
      end = line.match(/<<'?(\w+)/)?.[1];
    } else if (end) {
      commands.push(line);
      if (line === end) end = undefined;
    }
  }
  return commands.join("\n") + "\n";
}

function addButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(textOf(block));
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

// A browser gives the clipboard to pages of https, of this machine and of files.
if (navigator.clipboard) document.querySelectorAll("div.highlight").forEach(addButton);
