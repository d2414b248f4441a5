// Runs where modules do not: a page that was opened as a file cannot read the model beside it.
if (location.protocol === "file:") {
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("notice").textContent =
      "A browser reads the model only from a server: run `python -m http.server` in this folder and open " +
      "http://localhost:8000. · Der Browser liest das Modell nur von einem Server: `python -m http.server` in diesem " +
      "Ordner starten und http://localhost:8000 öffnen.";
  });
}
