"""The command line: ``fencelog NOUN VERB``. A noun's module is imported when it is used."""
